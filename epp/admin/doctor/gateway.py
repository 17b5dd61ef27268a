"""What the gateway's side lacks: the pool, the routes to it, and the Service by which the EPP is reached."""

from collections.abc import Iterator, Mapping, Sequence

from epp.admin.doctor.finding import Finding, error, unknown, warning
from epp.admin.doctor.read import read, read_or_raise
from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, UnreachableError
from epp.endpoints.kubernetes.watch import NOT_FOUND
from epp.readiness.chain import is_ready
from epp.readiness.snapshot.core_objects import Pod, Service, ServicePort
from epp.readiness.snapshot.gateway_objects import (
    GATEWAY_GROUP,
    POOL_GROUP,
    HTTPRoute,
    InferencePool,
    ParentStatus,
    PickerRef,
)
from epp.readiness.snapshot.objects import Condition, Struct, condition

PICKER_PORT = 9002
HTTP2 = ("http2", "kubernetes.io/h2c", "grpc")

MENDS = {
    "NoMatchingParent": "name a listener that the Gateway has in the route's parentRefs",
    "NotAllowedByListeners": "let the listener's allowedRoutes take routes of this namespace",
    "NoMatchingListenerHostname": "give route and listener a host name in common",
    "RefNotPermitted": "put the route into the pool's namespace, or allow the reference by a ReferenceGrant",
    "InvalidKind": "switch on the gateway's inference extension: it does not know InferencePool",
    "BackendNotFound": "name the InferencePool as it is called, in group inference.networking.k8s.io",
    "InvalidExtensionRef": "make endpointPickerRef name the EPP's Service and its gRPC port",
    "HTTPRouteNotAccepted": "see what the gateway says of the HTTPRoute",
}
"""What to do by the reason that a gateway gives (Gateway API v1, Inference Extension v1)."""


class RouteList(Struct, frozen=True):
    """The HTTPRoutes of a namespace."""

    items: tuple[HTTPRoute, ...] = ()


class PodList(Struct, frozen=True):
    """Pods by label."""

    items: tuple[Pod, ...] = ()


async def gateway_findings(client: KubernetesClient, namespace: str, name: str) -> list[Finding]:
    """What keeps requests of a gateway from the pool, or the gateway from the EPP."""
    where = f"InferencePool {name}"
    pool = await read(
        client, f"/apis/{POOL_GROUP}/v1/namespaces/{namespace}/inferencepools/{name}", InferencePool, where
    )
    if isinstance(pool, Finding):
        return [pool]
    findings = list(refusals(where, pool.status.parents or ()))
    if not pool.status.parents:
        findings.append(warning(where, "no gateway has taken it up", "name it in the backendRefs of an HTTPRoute"))
    findings.extend(await _routes(client, namespace, name))
    if pool.spec.endpoint_picker_ref is not None:
        findings.extend(await _picker(client, namespace, where, pool.spec.endpoint_picker_ref))
    return findings


def refusals(where: str, parents: Sequence[ParentStatus]) -> Iterator[Finding]:
    """Conditions of `where` that some parent does not hold true."""
    for parent in parents:
        for kind in ("Accepted", "ResolvedRefs"):
            found = condition(parent.conditions, kind)
            if found is not None and found.status != "True":
                yield _refusal(where, f"{parent.parent_ref.kind} {parent.parent_ref.name}", found)


def _refusal(where: str, by: str, found: Condition) -> Finding:
    reason = f" ({found.reason})" if found.reason else ""
    what = f"{by} says {found.type}={found.status}{reason}: {found.message or 'no more is said'}"
    return error(where, what, MENDS.get(found.reason, "mend the HTTPRoute, or endpointPickerRef's Service and port"))


async def _routes(client: KubernetesClient, namespace: str, pool: str) -> list[Finding]:
    """Routes of the pool's namespace, where a gateway looks first."""
    where = "HTTPRoutes"
    path = f"/apis/{GATEWAY_GROUP}/v1/namespaces/{namespace}/httproutes"
    found = await read(client, path, RouteList, where)
    if isinstance(found, Finding):
        return [found]
    routes = [route for route in found.items if _leads_to(route, pool)]
    if not routes:
        fix = f"give a rule a backendRef with group {POOL_GROUP}, kind InferencePool and name {pool}"
        return [warning(where, f"none of namespace {namespace} leads to InferencePool {pool}", fix)]
    findings: list[Finding] = []
    for route in routes:
        here = f"HTTPRoute {route.metadata.name}"
        findings.extend(refusals(here, route.status.parents or ()))
        if not route.status.parents:
            named = ", ".join(ref.name for ref in route.spec.parent_refs or ()) or "nothing"
            what = f"no gateway has accepted it; its parentRefs name {named}"
            findings.append(error(here, what, "name a Gateway that exists in parentRefs, and see that its class runs"))
    return findings


def _leads_to(route: HTTPRoute, pool: str) -> bool:
    refs = (ref for rule in route.spec.rules or () for ref in rule.backend_refs or ())
    return any(ref.kind == "InferencePool" and ref.group == POOL_GROUP and ref.name == pool for ref in refs)


async def _picker(client: KubernetesClient, namespace: str, pool: str, ref: PickerRef) -> list[Finding]:
    """Whether the Service that the pool names leads to an EPP that is ready."""
    where = f"Service {ref.name}"
    number = ref.port.number if ref.port else PICKER_PORT
    fix = f"apply manifests/base/service.yaml, or correct endpointPickerRef of {pool}"
    try:
        service = await read_or_raise(client, f"/api/v1/namespaces/{namespace}/services/{ref.name}", Service)
    except ApiError as problem:
        if problem.status == NOT_FOUND:
            what = "it does not exist, so no gateway reaches the EPP"
            return [error(where, f"{what}; {pool} names it in endpointPickerRef", fix)]
        return [unknown(where, f"could not be read: {problem}", "run it with a kubeconfig that may read this")]
    except UnreachableError as problem:
        return [unknown(where, f"could not be read: {problem}", "run it with a kubeconfig that may read this")]
    port = next((each for each in service.spec.ports or () if each.port == number), None)
    if port is None:
        return [error(where, f"it has no port {number}, by which {pool} reaches the EPP", fix)]
    findings = []
    if not _speaks_http2(port):
        what = f"port {number} says nothing of HTTP/2, so some gateways speak HTTP/1.1 to the EPP"
        findings.append(warning(where, what, "set appProtocol: http2 (GKE: kubernetes.io/h2c) on the port"))
    if service.spec.selector:
        findings.extend(await _behind(client, namespace, where, service.spec.selector))
    return findings


def _speaks_http2(port: ServicePort) -> bool:
    named = (port.name or "").partition("-")[0] in ("grpc", "http2")
    return port.app_protocol in HTTP2 if port.app_protocol else named


async def _behind(client: KubernetesClient, namespace: str, where: str, selector: Mapping[str, str]) -> list[Finding]:
    """Whether a ready pod stands behind the Service."""
    labels = ",".join(f"{name}={value}" for name, value in selector.items())
    pods = await read(client, f"/api/v1/namespaces/{namespace}/pods", PodList, where, {"labelSelector": labels})
    if isinstance(pods, Finding):
        return [pods]
    if any(map(is_ready, pods.items)):
        return []
    what = f"no ready pod with {labels} stands behind it, so no gateway reaches the EPP"
    return [error(where, what, "see `kubectl describe pod` of the EPP, and its log")]
