"""Group F: NetworkPolicies that stand in the way. What they allow may still be blocked elsewhere: --probe dials."""

from collections.abc import Iterator, Mapping

from epp.readiness.chain import Chain
from epp.readiness.checks.picker import picker_port
from epp.readiness.checks.sources import KUBERNETES
from epp.readiness.rule import Group, Problem, check
from epp.readiness.snapshot.core_objects import NetworkPolicy, Pod, PolicyIngress, PolicyPeer
from epp.readiness.snapshot.objects import labels_of, name_of
from epp.readiness.words import port_number


@check(
    48,
    "workers.reachable",
    group=Group.WORKERS,
    needs=(28, 41),
    rule="no NetworkPolicy keeps the Gateway from the workers' target ports and from the EPP",
    source=f"{KUBERNETES}, NetworkPolicy",
    fix="allow the Gateway's namespace in the policy, as manifests/base/networkpolicy.yaml does",
)
def reachable(chain: Chain) -> Iterator[Problem]:
    for pod in chain.ready_workers:
        for port in chain.target_ports:
            yield from _blocked(chain, pod, port)
    found = picker_port(chain)
    for pod in chain.picker_pods:
        number = None if found is None else port_number(pod, found.target_port, found.port)
        if number is not None:
            yield from _blocked(chain, pod, number)


def _blocked(chain: Chain, pod: Pod, port: int) -> Iterator[Problem]:
    namespace = pod.metadata.namespace
    policies = chain.objects(chain.body.sections.network_policies, "NetworkPolicies", namespace)
    mine = [it for it in policies if _restricts(it) and it.spec.pod_selector.selects(labels_of(pod))]
    if mine and not any(_lets_in(chain, rule, pod, port) for it in mine for rule in it.spec.ingress or ()):
        names = ", ".join(it.metadata.name for it in mine)
        text = f"Gateway {chain.gateway_ref} cannot reach {name_of(pod)}:{port}, by NetworkPolicy {names}"
        yield Problem(text, f"Pod {name_of(pod)}")


def _restricts(policy: NetworkPolicy) -> bool:
    return "Ingress" in (policy.spec.policy_types or ("Ingress",))


def _lets_in(chain: Chain, rule: PolicyIngress, pod: Pod, port: int) -> bool:
    """Whether a rule lets the Gateway's proxies in; what cannot be told counts as let in."""
    ports = rule.ports or ()
    fits = not ports or any(
        it.port is None
        or (port_number(pod, it.port, port) or -1) <= port <= (it.end_port or port_number(pod, it.port, port) or -1)
        for it in ports
        if it.protocol == "TCP"
    )
    return fits and (not rule.from_ or any(_may_be_gateway(chain, peer, pod) for peer in rule.from_))


def _may_be_gateway(chain: Chain, peer: PolicyPeer, pod: Pod) -> bool:
    if peer.pod_selector is None and peer.namespace_selector is None:
        return True  # a range of addresses
    gateway = chain.gateway_place.namespace
    if peer.namespace_selector is None:
        return gateway == pod.metadata.namespace and _selects_a_proxy(chain, peer)
    labels = _namespace_labels(chain, gateway)
    return labels is None or peer.namespace_selector.selects(labels)


def _selects_a_proxy(chain: Chain, peer: PolicyPeer) -> bool:
    """Whether the selector can be one of the Gateway's proxies; without a known proxy it may be."""
    gateway = chain.gateway_place
    label = "gateway.networking.k8s.io/gateway-name"
    here = [it for it in chain.body.sections.pods.objects if it.metadata.namespace == gateway.namespace]
    proxies = [it for it in here if labels_of(it).get(label) == gateway.name]
    return peer.pod_selector is None or not proxies or any(peer.pod_selector.selects(labels_of(it)) for it in proxies)


def _namespace_labels(chain: Chain, name: str) -> Mapping[str, str] | None:
    """Its labels; None when they could not be read."""
    known = (it for it in chain.body.sections.namespaces.objects if it.metadata.name == name)
    return next((labels_of(it) for it in known), None)


CHECKS = (reachable,)
