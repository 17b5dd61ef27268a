"""Group B, second half: the Gateway's data plane, where it runs in the cluster."""

from collections.abc import Iterator
from ipaddress import ip_network

from epp.readiness.chain import Chain, Ref
from epp.readiness.checks.gateway import used_listeners
from epp.readiness.checks.sources import GATEWAY_API, OWN, observed
from epp.readiness.rule import Group, NotApplicableError, Problem, check, warning
from epp.readiness.snapshot.core_objects import EndpointSlice, Pod, Service
from epp.readiness.snapshot.objects import labels_of

GATEWAY_LABEL = "gateway.networking.k8s.io/gateway-name"
ENVOY_GATEWAY_LABELS = ("gateway.envoyproxy.io/owning-gateway-namespace", "gateway.envoyproxy.io/owning-gateway-name")
SERVICE_LABEL = "kubernetes.io/service-name"
MANAGED = ("networking.gke.io/",)
"""Controllers whose data plane is outside of the cluster."""


def proxy_services(chain: Chain) -> list[Service]:
    """Services of the Gateway's proxies, by label or owner. Raises UnreadableError and NotApplicableError."""
    found = chain.gateway_class
    if found is not None and found.spec.controller_name.startswith(MANAGED):
        raise NotApplicableError(f"{found.spec.controller_name} runs its data plane outside of the cluster")
    place = chain.gateway_place
    section = chain.body.sections.services
    chain.readable(section, "Services", place.namespace)
    return [service for service in section.objects if _belongs(service, place)]


def _belongs(service: Service, gateway: Ref) -> bool:
    labels = labels_of(service)
    if tuple(labels.get(name) for name in ENVOY_GATEWAY_LABELS) == gateway:
        return True
    owners = service.metadata.owner_references or ()
    owned = any(owner.kind == "Gateway" and owner.name == gateway.name for owner in owners)
    here = service.metadata.namespace == gateway.namespace
    return here and (owned or labels.get(GATEWAY_LABEL) == gateway.name)


def slices_of(chain: Chain, service: Service) -> list[EndpointSlice]:
    """The EndpointSlices whose label is exactly the Service's name. Raises UnreadableError."""
    slices = chain.objects(chain.body.sections.endpoint_slices, "EndpointSlices", service.metadata.namespace)
    return [one for one in slices if labels_of(one).get(SERVICE_LABEL) == service.metadata.name]


def _proxy_pods(chain: Chain) -> list[Pod]:
    pods: list[Pod] = []
    for service in proxy_services(chain):
        selector = (service.spec.selector or {}).items()
        here = chain.objects(chain.body.sections.pods, "Pods", service.metadata.namespace)
        pods.extend(pod for pod in here if selector and selector <= labels_of(pod).items())
    return pods


@check(
    11,
    "gateway.data-plane",
    group=Group.GATEWAY,
    needs=(8,),
    rule="the Gateway's Service has a ready endpoint and the port of each listener in use",
    source=f"{GATEWAY_API}, label {GATEWAY_LABEL}",
    fix="see the proxy's pods; a controller that runs is not yet a proxy",
)
def data_plane(chain: Chain) -> Iterator[Problem]:
    services = proxy_services(chain)
    if not services:
        yield Problem(f"no Service belongs to Gateway {chain.gateway_ref}", f"Gateway {chain.gateway_ref}")
    for service in services:
        name = f"{service.metadata.namespace}/{service.metadata.name}"
        ready = [end for one in slices_of(chain, service) for end in one.endpoints or () if end.is_ready]
        if not ready:
            yield Problem(f"no ready data-plane endpoint behind Service {name}", f"Service {name}")
        ports = {port.port for port in service.spec.ports or ()}
        for listener in used_listeners(chain):
            if listener.port not in ports:
                yield Problem(f"Service {name} has no port {listener.port} of listener {listener.name}", name)


@check(
    12,
    "gateway.no-foreign-sidecar",
    group=Group.GATEWAY,
    needs=(11,),
    rule="no mesh sidecar is injected into the proxy's pods",
    source=observed("Istio's sidecar in agentgateway's proxy: ext_proc breaks, 500 with an empty body"),
    fix="label the proxy's pods sidecar.istio.io/inject: \"false\" through the gateway's parameters",
)
def no_foreign_sidecar(chain: Chain) -> Iterator[Problem]:
    for pod in _proxy_pods(chain):
        containers = [*pod.spec.containers, *(pod.spec.init_containers or ())]
        names = {one.name for one in containers}
        # In Istio's own gateway the proxy itself has that name, and is alone.
        if "istio-proxy" in names and len(names - {"istio-proxy", "istio-init", "istio-validation"}) > 0:
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            yield Problem(f"proxy pod {name} has an injected mesh sidecar; ext_proc calls will fail", f"Pod {name}")


@check(
    13,
    "gateway.exposure",
    group=Group.GATEWAY,
    needs=(11,),
    rule="a load balancer in front of the Gateway names the sources it serves",
    source=OWN + ", as AICR's exposure check",
    fix="set spec.loadBalancerSourceRanges through the gateway's parameters",
)
def exposure(chain: Chain) -> Iterator[Problem]:
    for service in proxy_services(chain):
        ranges = service.spec.load_balancer_source_ranges or ()
        if service.spec.type == "LoadBalancer" and (not ranges or any(map(_any_source, ranges))):
            problem = Problem("Gateway is open to any source", f"Service {service.metadata.name}")
            yield problem if chain.policy.scoped else warning(problem.text, problem.where)


def _any_source(text: str) -> bool:
    try:
        return ip_network(text, strict=False).prefixlen == 0
    except ValueError:
        return True


CHECKS = (data_plane, no_foreign_sidecar, exposure)
