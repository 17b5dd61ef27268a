"""Group E: the EPP's Service, endpoints, Deployment and pods."""

from collections.abc import Iterator

from epp.readiness.chain import Chain, is_ready
from epp.readiness.checks.proxy import slices_of
from epp.readiness.checks.sources import GIE, KUBERNETES, OWN, observed
from epp.readiness.rule import Group, NotApplicableError, Problem, check, warning
from epp.readiness.snapshot.core_objects import Container, Deployment, Pod, ServicePort
from epp.readiness.snapshot.objects import labels_of, name_of
from epp.readiness.words import first_of, flags_of, port_number, settings_of

HTTP2 = ("http2", "kubernetes.io/h2c", "grpc", "h2c")
POOL_SETTINGS = ("EPP_POOL_NAME", "DYN_EPP_INFERENCE_POOL_NAME", "POOL_NAME")
POOL_FLAGS = ("--pool-name", "--poolName")
NAMESPACE_SETTINGS = ("EPP_NAMESPACE", "POOL_NAMESPACE")
NAMESPACE_FLAGS = ("--pool-namespace", "--poolNamespace")
ELECTION_FLAGS = ("--ha-enable-leader-election", "--haEnableLeaderElection")


@check(
    28,
    "picker.service",
    group=Group.PICKER,
    needs=(26,),
    rule="the EPP's Service exists in the pool's namespace, and stands for pods",
    source=f"{GIE}, endpointPickerRef",
    fix="create the Service in the pool's namespace, with a selector of the EPP's pods",
)
def service(chain: Chain) -> Iterator[Problem]:
    place = chain.picker_place
    found = chain.find(chain.body.sections.services, "Services", place)
    where = f"Service {place}"
    if found is None:
        yield Problem(f"EPP Service {place} not found", where)
    elif found.spec.type == "ExternalName":
        yield Problem(f"EPP Service {place} is an ExternalName, which gateways do not take", where)
    elif not found.spec.selector and not slices_of(chain, found):
        yield Problem(f"EPP Service {place} selects no pods and has no EndpointSlice", where)


def picker_port(chain: Chain) -> ServicePort | None:
    """The port of the EPP's Service that the pool names. Raises UnreadableError."""
    ref = chain.pool.spec.endpoint_picker_ref
    wanted = ref.port.number if ref and ref.port else None
    return next((port for port in chain.picker_service.spec.ports or () if port.port == wanted), None)


@check(
    29,
    "picker.port",
    group=Group.PICKER,
    needs=(28,),
    rule="the EPP's Service has the port that the pool names, and says that it is HTTP/2",
    source=f"{GIE}, endpointPickerRef.port; " + observed("without appProtocol, Istio speaks HTTP/1.1 to it"),
    fix="give the Service that port, with appProtocol: http2",
)
def port(chain: Chain) -> Iterator[Problem]:
    found, place = picker_port(chain), chain.picker_place
    ref = chain.pool.spec.endpoint_picker_ref
    if found is None:
        number = ref.port.number if ref and ref.port else "?"
        yield Problem(f"EPP Service has no port {number}", f"Service {place}")
    elif found.app_protocol not in HTTP2 and not (found.name or "").startswith(("grpc", "http2")):
        what = f"port {found.port} has appProtocol {found.app_protocol}" if found.app_protocol else "no appProtocol"
        yield warning(f"EPP Service: {what}; some gateways would speak HTTP/1.1", f"Service {place}")


@check(
    30,
    "picker.endpoints",
    group=Group.PICKER,
    needs=(28, 29),
    rule="the EPP's Service has a ready endpoint on that port",
    source=f"{KUBERNETES}, EndpointSlice",
    fix="see the EPP's pods: not ready until the pool is known",
)
def endpoints(chain: Chain) -> Iterator[Problem]:
    place, found = chain.picker_place, picker_port(chain)
    slices = slices_of(chain, chain.picker_service)
    ready = [end for one in slices for end in one.endpoints or () if end.is_ready]
    if not ready:
        yield Problem(f"EPP Service {place} has no ready endpoint", f"Service {place}")
        return
    names = {one.name for part in slices for one in part.ports or ()}
    if found is not None and (found.name or "") not in {name or "" for name in names}:
        yield Problem(f"the endpoints of EPP Service {place} lack port {found.name}", f"Service {place}")


def _deployment(chain: Chain) -> Deployment | None:
    """The Deployment of the EPP's pods. Raises UnreadableError."""
    deployments = chain.objects(chain.body.sections.deployments, "Deployments", chain.picker_place.namespace)
    selector = chain.picker_service.spec.selector or {}
    for found in deployments:
        labels = found.spec.selector.match_labels or {}
        if labels and any(found.spec.selector.selects(labels_of(pod)) for pod in chain.picker_pods):
            return found
    by_labels = (
        it for it in deployments if selector and (it.spec.selector.match_labels or {}).items() <= selector.items()
    )
    return next(by_labels, None)


@check(
    31,
    "picker.available",
    group=Group.PICKER,
    needs=(28,),
    rule="the EPP's replicas are available, up to date and steady",
    source=f"{KUBERNETES}, DeploymentStatus; " + OWN,
    fix="see the EPP's pods and their logs",
)
def available(chain: Chain) -> Iterator[Problem]:
    found, pods = _deployment(chain), chain.picker_pods
    if found is None:
        if not any(map(is_ready, pods)):
            yield Problem("EPP not available: no pod of it is ready", f"Service {chain.picker_place}")
        return
    where, status = f"Deployment {name_of(found)}", found.status
    wanted = found.spec.replicas
    if status.available_replicas < max(wanted, 1):
        yield Problem(f"EPP not available {status.available_replicas}/{wanted}", where)
    elif status.updated_replicas < wanted or (status.observed_generation or 0) < found.metadata.generation:
        yield warning(f"EPP is being rolled out: {status.updated_replicas}/{wanted} updated", where)
    yield from _replicas(chain, pods, where)
    for pod in pods:
        yield from _steady(chain, pod)


def _replicas(chain: Chain, pods: list[Pod], where: str) -> Iterator[Problem]:
    """An EPP of ours shares what it knows among replicas; others split their KV state."""
    containers = [(pod, it) for pod in pods if is_ready(pod) for it in pod.spec.containers]
    foreign = [it for pod, it in containers if _binding(chain, pod, it)[0] in (*POOL_FLAGS, "POOL_NAME")]
    elected = any(first_of(flags_of(it), *ELECTION_FLAGS) == "true" for it in foreign)
    if len(foreign) > 1 and not elected:
        yield Problem(f"{len(foreign)} EPP replicas without leader election: KV state is split", where)


def _steady(chain: Chain, pod: Pod) -> Iterator[Problem]:
    restarts = sum(one.restart_count for one in pod.status.container_statuses or ())
    if restarts > chain.policy.max_restarts:
        yield warning(f"EPP pod {name_of(pod)} restarted {restarts} times", f"Pod {name_of(pod)}")


def _binding(chain: Chain, pod: Pod, container: Container) -> tuple[str, str]:
    """The name and value of what binds an EPP's container to a pool; empty when nothing does."""
    settings, _ = settings_of(chain, pod, container)
    for found, names in ((flags_of(container), POOL_FLAGS), (settings, POOL_SETTINGS)):
        for name in names:
            if found.get(name):
                return name, found[name]
    return "", ""


@check(
    32,
    "picker.binding",
    group=Group.PICKER,
    needs=(31,),
    rule="the EPP serves the pool that the route sends to, on the port that its Service leads to",
    source=OWN,
    fix="set EPP_POOL_NAME and EPP_NAMESPACE (or --pool-name, --pool-namespace) to the pool's",
)
def binding(chain: Chain) -> Iterator[Problem]:
    pods = [pod for pod in chain.picker_pods if is_ready(pod)] or chain.picker_pods
    if not pods:
        raise NotApplicableError("no pod of the EPP is recorded")
    unknown = True
    for pod in pods:
        bound = [(it, _binding(chain, pod, it)[1]) for it in pod.spec.containers]
        for container, pool in bound:
            if pool:
                unknown = False
                yield from _bound(chain, pod, container, pool)
        yield from _leads(chain, pod)
    if unknown:
        yield warning("no setting or flag of the EPP tells which pool it serves", f"Pod {name_of(pods[0])}")


def _bound(chain: Chain, pod: Pod, container: Container, pool: str) -> Iterator[Problem]:
    settings, _ = settings_of(chain, pod, container)
    namespace = first_of(settings, *NAMESPACE_SETTINGS) or first_of(flags_of(container), *NAMESPACE_FLAGS)
    place, wanted = f"{namespace or pod.metadata.namespace}/{pool}", str(chain.pool_place)
    if place != wanted:
        yield Problem(f"EPP serves pool {place}, route uses {wanted}", f"Pod {name_of(pod)}")


def _leads(chain: Chain, pod: Pod) -> Iterator[Problem]:
    """Whether the Service's port leads to the port on which the EPP listens, where its settings tell."""
    found = picker_port(chain)
    number = None if found is None else port_number(pod, found.target_port, found.port)
    if found is not None and number is None:
        text = f"EPP pod {name_of(pod)} has no port named {found.target_port}, to which its Service leads"
        yield Problem(text, f"Pod {name_of(pod)}")
        return
    for container in pod.spec.containers:
        settings, _ = settings_of(chain, pod, container)
        listens = first_of(settings, "EPP_GRPC_PORT") or first_of(flags_of(container), "--grpc-port", "--grpcPort")
        if listens is not None and listens not in ("0", str(number)):
            yield Problem(f"EPP listens on {listens}, its Service leads to {number}", f"Pod {name_of(pod)}")


CHECKS = (service, port, endpoints, available, binding)
