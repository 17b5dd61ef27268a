"""Takes a snapshot of a cluster, with read-only rights; what may not be read is recorded as such."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from epp import __version__
from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, UnreachableError
from epp.readiness.snapshot.cluster import SECONDS, read_kind
from epp.readiness.snapshot.core_objects import ConfigMap, Deployment, Pod, RoleBinding
from epp.readiness.snapshot.document import Body, EppStatus, Metadata, Platform, Section, Sections, Snapshot, seal
from epp.readiness.snapshot.gateway_objects import Gateway, GatewayClass, HTTPRoute, InferencePool
from epp.readiness.snapshot.kinds import KINDS, Scope
from epp.readiness.snapshot.objects import Meta, Struct
from epp.readiness.snapshot.redact import pairs

PROXY_NAMESPACES = {"gateway.envoyproxy.io": "envoy-gateway-system", "aigateway.envoyproxy.io": "envoy-gateway-system"}
"""Gateways that run their proxies in a namespace of their own, by the domain of their controller."""


class _Uid(Struct, frozen=True):
    uid: str = ""


class _UidOnly(Struct, frozen=True):
    metadata: _Uid


class _Version(Struct, frozen=True):
    git_version: str = ""


class _GroupVersion(Struct, frozen=True):
    version: str = ""


class _Group(Struct, frozen=True):
    name: str
    versions: tuple[_GroupVersion, ...] = ()


class _Groups(Struct, frozen=True):
    groups: tuple[_Group, ...] = ()


async def take(client: KubernetesClient, namespaces: Sequence[str], epp_status: EppStatus | None = None) -> Snapshot:
    """A snapshot around `namespaces`: those of pools and gateways that touch them are read too.

    Raises UnreachableError when there is no API server at all.
    """
    platform = await _platform(client)
    read: dict[str, Section[object]] = {}
    for kind in KINDS:
        if kind.scope is not Scope.GIVEN:
            read[kind.section] = await read_kind(client, kind, namespaces)
    touched = _touched(read, namespaces)
    for kind in KINDS:
        if kind.scope is Scope.GIVEN:
            read[kind.section] = await read_kind(client, kind, touched)
    _trim(read)
    sections = msgspec.structs.replace(Sections(), **read)
    metadata = Metadata(
        captured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"epp {__version__}",
        cluster=await _cluster(client),
        namespaces=tuple(touched),
    )
    platform = replace(platform, charts=_charts(read), images=_images(read))
    return seal(Body(metadata=metadata, platform=platform, sections=sections, epp_status=epp_status))


def _touched(read: Mapping[str, Section[object]], namespaces: Sequence[str]) -> list[str]:
    """Namespaces in which Services and pods matter: the given ones, and those that a chain leads to."""
    given = set(namespaces)
    found = set(given)
    for route in read["http_routes"].objects:
        assert isinstance(route, HTTPRoute)
        backends = {
            backend.namespace or route.metadata.namespace
            for rule in route.spec.rules or ()
            for backend in rule.backend_refs or ()
            if backend.kind == "InferencePool"
        }
        parents = {ref.namespace or route.metadata.namespace for ref in route.spec.parent_refs or ()}
        if backends & given or (parents & given and backends):
            found |= backends | parents
    found |= _proxies(read)
    existing = {pool.metadata.namespace for pool in read["inference_pools"].objects if isinstance(pool, InferencePool)}
    existing |= {item.metadata.namespace for item in read["gateways"].objects if isinstance(item, Gateway)}
    return sorted(found & (existing | given | set(PROXY_NAMESPACES.values())))


def _proxies(read: Mapping[str, Section[object]]) -> set[str]:
    classes = (item for item in read["gateway_classes"].objects if isinstance(item, GatewayClass))
    domains = {item.spec.controller_name.partition("/")[0] for item in classes}
    return {namespace for domain, namespace in PROXY_NAMESPACES.items() if domain in domains}


def _trim(read: dict[str, Section[object]]) -> None:
    """Leave out what no check reads: others' ConfigMaps, and roles that nobody here has."""
    pods = [item for item in read["pods"].objects if isinstance(item, Pod)]
    used = {(item.metadata.namespace, name) for item in pods for name in _config_maps(item)}
    maps = [item for item in read["config_maps"].objects if isinstance(item, ConfigMap)]
    kept = [item for item in maps if (item.metadata.namespace, item.metadata.name) in used]
    read["config_maps"] = replace(read["config_maps"], objects=tuple(kept))
    namespaces = {item.metadata.namespace for item in pods}
    bindings = [item for item in read["cluster_role_bindings"].objects if isinstance(item, RoleBinding)]
    ours = tuple(item for item in bindings if _binds(item, namespaces))
    read["cluster_role_bindings"] = replace(read["cluster_role_bindings"], objects=ours)
    local = (item for item in read["role_bindings"].objects if isinstance(item, RoleBinding))
    names = {binding.role_ref.name for binding in (*ours, *local) if binding.role_ref.kind == "ClusterRole"}
    roles = read["cluster_roles"]
    read["cluster_roles"] = replace(roles, objects=tuple(item for item in roles.objects if _meta(item).name in names))


def _config_maps(pod: Pod) -> Iterable[str]:
    for container in pod.spec.containers:
        for source in container.env_from or ():
            if source.config_map_ref is not None:
                yield source.config_map_ref.name


def _binds(binding: RoleBinding, namespaces: set[str]) -> bool:
    return any(
        (subject.kind == "ServiceAccount" and subject.namespace in namespaces)
        or (subject.kind == "Group" and subject.name.startswith("system:serviceaccounts"))
        for subject in binding.subjects or ()
    )


def _meta(item: object) -> Meta:
    meta: Meta = item.metadata  # type: ignore[attr-defined]  # every kind has it
    return meta


def _charts(read: Mapping[str, Section[object]]) -> dict[str, str]:
    """Helm's label `helm.sh/chart` is `name-version`."""
    charts: dict[str, str] = {}
    for item in read["deployments"].objects:
        assert isinstance(item, Deployment)
        name, dash, version = _chart((item.metadata.labels or {}).get("helm.sh/chart", ""))
        if dash:
            charts[name] = version
    return pairs(charts)


def _chart(label: str) -> tuple[str, str, str]:
    """Name and version: the version begins at the first dash before a digit, or `v` and a digit."""
    parts = label.split("-")
    for at in range(1, len(parts)):
        if parts[at].lstrip("v")[:1].isdigit():
            return "-".join(parts[:at]), "-", "-".join(parts[at:])
    return label, "", ""


def _images(read: Mapping[str, Section[object]]) -> dict[str, str]:
    images: dict[str, str] = {}
    for item in read["pods"].objects:
        assert isinstance(item, Pod)
        for container in item.spec.containers:
            name, colon, tag = container.image.rpartition("/")[2].partition(":")
            if colon:
                images[name] = tag.partition("@")[0]
    return pairs(images)


async def _platform(client: KubernetesClient) -> Platform:
    """Version and API groups. Raises UnreachableError: without a server there is nothing to record."""
    version = groups = None
    try:
        async with client.get("/version", {}, silence_seconds=SECONDS) as response:
            version = msgspec.json.decode(await response.read(), type=_Version).git_version
    except (ApiError, msgspec.DecodeError):
        pass
    try:
        async with client.get("/apis", {}, silence_seconds=SECONDS) as response:
            listed = msgspec.json.decode(await response.read(), type=_Groups).groups
            groups = {group.name: tuple(sorted(one.version for one in group.versions)) for group in listed}
    except (ApiError, msgspec.DecodeError):
        pass
    return Platform(server_version=version, api_groups=None if groups is None else dict(sorted(groups.items())))


async def _cluster(client: KubernetesClient) -> str:
    try:
        async with client.get("/api/v1/namespaces/kube-system", {}, silence_seconds=SECONDS) as response:
            uid = msgspec.json.decode(await response.read(), type=_UidOnly).metadata.uid
    except (ApiError, UnreachableError, msgspec.DecodeError):
        return ""
    return sha256(uid.encode()).hexdigest()[:16]
