"""What can be learnt from the Kubernetes API: command lines of workers, conditions of the pool, network policies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from epp.admin.doctor.engine_flags import Expected, flag_findings
from epp.admin.doctor.finding import Finding, error, unknown, warning
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, UnreachableError
from epp.endpoints.kubernetes.inference_pool import GROUP
from epp.endpoints.kubernetes.objects import Condition, Meta, Struct

T = TypeVar("T")

MOST_PODS = 20
SECONDS = 10.0


class Container(Struct, frozen=True):
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None


class PodSpec(Struct, frozen=True):
    containers: tuple[Container, ...] = ()


class CommandPod(Struct, frozen=True):
    """A pod as far as its command lines go."""

    spec: PodSpec
    metadata: Meta


class ConditionWithReason(Condition, frozen=True):
    reason: str = ""
    message: str = ""


class Parent(Struct, frozen=True):
    conditions: tuple[ConditionWithReason, ...] | None = None


class PoolStatus(Struct, frozen=True):
    parents: tuple[Parent, ...] | None = None


class StatusPool(Struct, frozen=True):
    """An InferencePool as far as gateways speak of it."""

    status: PoolStatus = PoolStatus()


class Selector(Struct, frozen=True):
    match_labels: Mapping[str, str] | None = None
    match_expressions: tuple[object, ...] | None = None


class PolicySpec(Struct, frozen=True):
    pod_selector: Selector = Selector()
    policy_types: tuple[str, ...] | None = None


class Policy(Struct, frozen=True):
    """A NetworkPolicy as far as whom it protects goes."""

    spec: PolicySpec


class PolicyList(Struct, frozen=True):
    items: tuple[Policy, ...] = ()


async def pool_findings(client: KubernetesClient, namespace: str, name: str) -> list[Finding]:
    """What gateways say of the pool."""
    where = f"InferencePool {name}"
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/inferencepools/{name}"
    found = await _read(client, path, StatusPool, where)
    return [found] if isinstance(found, Finding) else list(pool_conditions(where, found))


def pool_conditions(where: str, pool: StatusPool) -> Iterator[Finding]:
    """Conditions that are not True, and the lack of any."""
    parents = pool.status.parents or ()
    if not parents:
        yield warning(where, "no gateway has taken it up", "name it in the backendRefs of an HTTPRoute")
    for parent in parents:
        for condition in parent.conditions or ():
            if condition.type in ("Accepted", "ResolvedRefs") and condition.status != "True":
                what = f"a gateway says {condition.type}={condition.status} ({condition.reason}): {condition.message}"
                yield error(where, what, "mend the HTTPRoute, or endpointPickerRef's Service and port")


async def pod_findings(
    client: KubernetesClient, namespace: str, endpoints: Sequence[Endpoint], expected: Expected
) -> list[Finding]:
    """What is wrong with the command lines of vLLM workers."""
    pods = {endpoint.name.partition("-rank-")[0]: endpoint for endpoint in endpoints if endpoint.engine == "vllm"}
    findings: list[Finding] = []
    for name, endpoint in list(pods.items())[:MOST_PODS]:
        where = f"pod {name}"
        found = await _read(client, f"/api/v1/namespaces/{namespace}/pods/{name}", CommandPod, where)
        if isinstance(found, Finding):
            findings.append(found)
        elif command := _engine_command(found):
            of_this = Expected(
                block_size=endpoint.block_size or expected.block_size,
                events_port=None if endpoint.events_port is None else endpoint.events_port - endpoint.rank,
                replay_port=None if endpoint.replay_port is None else endpoint.replay_port - endpoint.rank,
                kv_events=expected.kv_events,
            )
            findings.extend(flag_findings(where, command, of_this))
    return findings


def _engine_command(pod: CommandPod) -> list[str]:
    """The words of the container that looks like vLLM; empty when none does."""
    for container in pod.spec.containers:
        words = [*(container.command or ()), *(container.args or ())]
        if any("vllm" in word for word in words) or any(word.startswith("--model") for word in words):
            return words
    return []


async def policy_findings(client: KubernetesClient, namespace: str, endpoints: Sequence[Endpoint]) -> list[Finding]:
    """Whether the event ports of the workers are open to all."""
    publishing = [endpoint for endpoint in endpoints if endpoint.events_port is not None]
    if not publishing:
        return []
    where = "network policies"
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    found = await _read(client, path, PolicyList, where)
    if isinstance(found, Finding):
        return [found]
    bare = [endpoint.name for endpoint in publishing if not any(_protects(policy, endpoint) for policy in found.items)]
    if not bare:
        return []
    what = f"KV events carry prompts as token ids, and any pod may listen to {', '.join(bare[:3])}"
    fix = "apply a NetworkPolicy like manifests/components/vllm/networkpolicy.yaml"
    return [warning(where, what + (" and others" if len(bare) > len(bare[:3]) else ""), fix)]


def _protects(policy: Policy, endpoint: Endpoint) -> bool:
    selector = policy.spec.pod_selector
    labels = (selector.match_labels or {}).items()
    return (
        not selector.match_expressions
        and all(endpoint.labels.get(name) == value for name, value in labels)
        and "Ingress" in (policy.spec.policy_types or ("Ingress",))
    )


async def _read(client: KubernetesClient, path: str, kind: type[T], where: str) -> T | Finding:
    try:
        async with client.get(path, {}, silence_seconds=SECONDS) as response:
            return msgspec.json.decode(await response.read(), type=kind)
    except (ApiError, UnreachableError, msgspec.DecodeError) as problem:
        return unknown(where, f"could not be read: {problem}", "run it with a kubeconfig that may read this")
