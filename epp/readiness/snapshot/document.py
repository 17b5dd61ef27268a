"""The snapshot document: everything the checks read, with how well each kind could be read."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec

from epp.readiness.snapshot import core_objects as core
from epp.readiness.snapshot import gateway_objects as gateway
from epp.readiness.snapshot.objects import Struct

KIND = "GatewayReadinessSnapshot"
API_GROUP = "readiness.epp"
API_VERSION = "readiness.epp/v1"
EVERYWHERE = "*"

T = TypeVar("T")


class State(StrEnum):
    """How well a kind could be read. Only `ok` and `absent` say that what is not recorded does not exist."""

    OK = "ok"
    ABSENT = "absent"
    """The API server does not know the kind."""
    DENIED = "denied"
    """We may not read it, at least in one place."""
    ERROR = "error"
    UNKNOWN = "unknown"
    """Nobody tried."""


class Section(Struct, Generic[T], frozen=True):
    """The objects of one kind, sorted by namespace and name."""

    state: State = State.UNKNOWN
    error: str = ""
    """Why the state is what it is, when it is denied or error."""
    namespaces: tuple[str, ...] = ()
    """Where it was read completely; `*`: everywhere."""
    objects: tuple[T, ...] = ()

    def covers(self, namespace: str) -> bool:
        """Whether all objects of that namespace are here."""
        if self.state is State.ABSENT:
            return True
        return namespace in self.namespaces or EVERYWHERE in self.namespaces


class Sections(Struct, frozen=True, forbid_unknown_fields=True):
    """One section for each kind that some check reads."""

    definitions: Section[gateway.Definition] = Section()
    namespaces: Section[core.Namespace] = Section()
    gateway_classes: Section[gateway.GatewayClass] = Section()
    gateways: Section[gateway.Gateway] = Section()
    http_routes: Section[gateway.HTTPRoute] = Section()
    reference_grants: Section[gateway.ReferenceGrant] = Section()
    inference_pools: Section[gateway.InferencePool] = Section()
    legacy_pools: Section[gateway.LegacyPool] = Section()
    services: Section[core.Service] = Section()
    endpoint_slices: Section[core.EndpointSlice] = Section()
    deployments: Section[core.Deployment] = Section()
    pods: Section[core.Pod] = Section()
    network_policies: Section[core.NetworkPolicy] = Section()
    roles: Section[core.Role] = Section()
    role_bindings: Section[core.RoleBinding] = Section()
    cluster_roles: Section[core.Role] = Section()
    cluster_role_bindings: Section[core.RoleBinding] = Section()
    config_maps: Section[core.ConfigMap] = Section()
    destination_rules: Section[gateway.DestinationRule] = Section()
    backend_tls_policies: Section[gateway.BackendTlsPolicy] = Section()
    dynamo_graphs: Section[gateway.DynamoGraph] = Section()

    def __iter__(self) -> Iterator[tuple[str, Section[object]]]:
        """Name and section, in order."""
        for name in self.__struct_fields__:
            yield name, getattr(self, name)


class Platform(Struct, frozen=True, forbid_unknown_fields=True):
    """What the platform below offers, as facts for constraints; nobody here judges GPUs."""

    server_version: str | None = None
    """The API server's gitVersion; None: could not be read."""
    api_groups: Mapping[str, tuple[str, ...]] | None = None
    """Served versions by API group; None: could not be read."""
    charts: Mapping[str, str] = {}
    """Version by name of Helm charts, from labels of Deployments that could be read."""
    images: Mapping[str, str] = {}
    """Tag by name of images of containers that could be read."""


class EppStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """What an EPP says of itself on its admin port."""

    version: str
    ready: bool
    endpoints: tuple[str, ...]
    """`ip:port` of every endpoint that it can choose."""


class Metadata(Struct, frozen=True, forbid_unknown_fields=True):
    """When and by what the snapshot was taken."""

    captured_at: str
    """RFC 3339, UTC."""
    tool: str
    cluster: str = ""
    """Hash of the uid of namespace kube-system: tells clusters apart, names none."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose pods, services and deployments were read."""


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """All that the digest covers."""

    metadata: Metadata
    platform: Platform = Platform()
    sections: Sections = Sections()
    epp_status: EppStatus | None = None


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """The whole document."""

    kind: str
    api_version: str
    digest: str
    """`sha256:` and the hex digest of the canonical JSON of `body`."""
    body: Body


def seal(body: Body) -> Snapshot:
    """The document of `body`."""
    as_read = msgspec.convert(msgspec.to_builtins(body), Body)  # the digest is that of what a reader will see
    return Snapshot(kind=KIND, api_version=API_VERSION, digest=digest(as_read), body=as_read)


def digest(body: Body) -> str:
    """SHA-256 over the body as JSON with sorted keys and defaults left out."""
    return "sha256:" + sha256(msgspec.json.encode(_canonical(body), order="sorted")).hexdigest()


def _canonical(value: object) -> object:
    """Plain values without what equals its default: msgspec leaves out only what is the very same object."""
    if isinstance(value, msgspec.Struct):
        pairs = ((field, getattr(value, field.name)) for field in _fields(type(value)))
        return {field.encode_name: _canonical(it) for field, it in pairs if it != _default(field)}
    if isinstance(value, Mapping):
        return {key: _canonical(it) for key, it in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(it) for it in value]
    return value


_fields = cache(msgspec.structs.fields)


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def json_schema() -> dict[str, object]:
    """The JSON Schema of the document, as published in docs/."""
    schema = msgspec.json.schema(Snapshot)
    head: dict[str, object] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": KIND}
    return head | schema
