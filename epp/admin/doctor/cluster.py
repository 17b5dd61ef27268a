"""What can be learnt of the workers from the Kubernetes API: their command lines, and who may reach their ports."""

from collections.abc import Sequence

from epp.admin.doctor.engine_flags import Expected, flag_findings
from epp.admin.doctor.finding import Finding, warning
from epp.admin.doctor.read import read
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.readiness.snapshot.core_objects import NetworkPolicy, Pod, PolicyIngress
from epp.readiness.snapshot.objects import Struct, labels_of
from epp.readiness.words import port_number

MOST_PODS = 20
"""Pods whose command lines are read; a fault of a pool shows in the first few."""


class PolicyList(Struct, frozen=True):
    """The NetworkPolicies of a namespace."""

    items: tuple[NetworkPolicy, ...] = ()


async def cluster_findings(
    client: KubernetesClient, namespace: str, endpoints: Sequence[Endpoint], expected: Expected
) -> list[Finding]:
    """What is wrong with the command lines of vLLM workers, and with the protection of their event ports."""
    workers: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        workers.setdefault(endpoint.name.partition("-rank-")[0], endpoint)
    pods: dict[str, Pod] = {}
    findings: list[Finding] = []
    for name in list(workers)[:MOST_PODS]:
        found = await read(client, f"/api/v1/namespaces/{namespace}/pods/{name}", Pod, f"pod {name}")
        if isinstance(found, Finding):
            findings.append(found)
        else:
            pods[name] = found
    for name, pod in pods.items():
        if workers[name].engine == "vllm" and (command := _engine_command(pod)):
            findings.extend(flag_findings(f"pod {name}", command, _expected_of(workers[name], expected)))
    publishing = {name: workers[name] for name in pods if workers[name].events_port is not None}
    if expected.kv_events and publishing:
        findings.extend(await _open_ports(client, namespace, publishing, pods))
    return findings


def _expected_of(endpoint: Endpoint, pool: Expected) -> Expected:
    return Expected(
        block_size=endpoint.block_size or pool.block_size,
        events_port=None if endpoint.events_port is None else endpoint.events_port - endpoint.rank,
        replay_port=None if endpoint.replay_port is None else endpoint.replay_port - endpoint.rank,
        kv_events=pool.kv_events,
        bind_port=pool.bind_port,
    )


def _engine_command(pod: Pod) -> list[str]:
    """The words of the container that looks like vLLM; empty when none does."""
    for container in pod.spec.containers:
        words = [*(container.command or ()), *(container.args or ())]
        if any("vllm" in word for word in words) or any(word.startswith("--model") for word in words):
            return words
    return []


async def _open_ports(
    client: KubernetesClient, namespace: str, workers: dict[str, Endpoint], pods: dict[str, Pod]
) -> list[Finding]:
    """Workers whose event ports any pod may reach: policies add up, so one that lets all in is enough."""
    where = "network policies"
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    found = await read(client, path, PolicyList, where)
    if isinstance(found, Finding):
        return [found]
    bare = []
    for name, endpoint in workers.items():
        mine = [it for it in found.items if _restricts(it) and it.spec.pod_selector.selects(labels_of(pods[name]))]
        ports = [port for port in (endpoint.events_port, endpoint.replay_port) if port is not None]
        rules = [rule for policy in mine for rule in policy.spec.ingress or ()]
        if not mine or any(_lets_all_in(rule, pods[name], port) for rule in rules for port in ports):
            bare.append(name)
    if not bare:
        return []
    named = ", ".join(bare[:3]) + (" and others" if len(bare) > len(bare[:3]) else "")
    what = f"KV events carry prompts as token ids, and any pod may listen to {named}"
    return [warning(where, what, "apply a NetworkPolicy like manifests/components/vllm/networkpolicy.yaml")]


def _restricts(policy: NetworkPolicy) -> bool:
    return "Ingress" in (policy.spec.policy_types or ("Ingress",))


def _lets_all_in(rule: PolicyIngress, pod: Pod, port: int) -> bool:
    if rule.from_:
        return False
    for allowed in rule.ports or ():
        first = port_number(pod, allowed.port, port)
        if first is not None and first <= port <= (allowed.end_port or first):
            return True
    return not rule.ports
