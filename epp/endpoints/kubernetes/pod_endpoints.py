"""From a pod to its endpoints; no state, no I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from epp.endpoints import dynamo
from epp.endpoints.endpoint import Endpoint, Role
from epp.endpoints.kubernetes import labels as names
from epp.endpoints.kubernetes.cluster import Defaults
from epp.endpoints.kubernetes.inference_pool import PoolSpec
from epp.endpoints.kubernetes.objects import Container, Pod
from epp.endpoints.roles import ANY_ROLE, ROLES
from epp.settings import PodReadiness

MAX_PORT = 65535
_SHARE = re.compile(r"0|1|1\.0{1,9}|0?\.[0-9]{1,9}", re.ASCII)
_MAX_EVENT_RANKS = 1024


@dataclass(frozen=True, slots=True)
class PodEndpoints:
    """The endpoints of one pod, and remarks on what looks wrong with it."""

    endpoints: tuple[Endpoint, ...] = ()
    remarks: tuple[str, ...] = ()


NOTHING = PodEndpoints()


def pod_endpoints(pod: Pod, spec: PoolSpec, defaults: Defaults) -> PodEndpoints:
    """One endpoint per target port of `spec` that serves on this pod; none unless the pod can serve."""
    address = _address(pod, ipv6=defaults.ipv6)
    if not address or not _running(pod) or (defaults.readiness is PodReadiness.POD and not _ready(pod)):
        return NOTHING
    facts = _Facts(pod)
    if facts.dynamo:
        port = _port_named(pod, names.DYNAMO_PORT_NAME)
        if port is None:
            remark = f"no container port is named {names.DYNAMO_PORT_NAME}: the worker needs a sidecar"
            return PodEndpoints((), (remark,))
        ranks = {0: port}
    else:
        ranks = facts.active(spec.ports)
    serving = ranks
    if defaults.readiness is PodReadiness.CONTAINERS:
        serving = {rank: port for rank, port in ranks.items() if _container_ready(pod, port)}
    if facts.rank_by_header(len(spec.ports)):
        serving = {rank: port for port in serving.values() for rank in range(facts.event_ranks())}
    endpoints = tuple(_endpoint(facts, spec, defaults, address, rank, port) for rank, port in serving.items())
    return PodEndpoints(endpoints, (*dict.fromkeys(facts.remarks), *_undeclared(pod, ranks)))


def dynamo_worker(labels: Mapping[str, str]) -> bool:
    """Whether these are the labels of a worker that Dynamo's operator runs, which obeys only its sidecar's headers."""
    return names.DYNAMO_NAMESPACE in labels and labels.get(names.DYNAMO_CLASS, "worker") == "worker"


def _endpoint(facts: "_Facts", spec: PoolSpec, defaults: Defaults, address: str, rank: int, port: int) -> Endpoint:
    pod, is_dynamo = facts.pod, facts.dynamo
    # The engines of Dynamo's workers publish to their own process only, so no default port is theirs.
    events = facts.number(names.EVENTS_PORT, None if is_dynamo else defaults.events_port)
    replay = facts.number(names.REPLAY_PORT, None if is_dynamo else defaults.replay_port)
    load = facts.number(names.LOAD_PORT, None)
    by_header = facts.rank_by_header(len(spec.ports))
    name = pod.metadata.name
    alone = is_dynamo or (len(spec.ports) == 1 and not by_header)
    return Endpoint(
        name=name if alone else f"{name}-rank-{rank}",
        address=address,
        port=port,
        uid=pod.metadata.uid,
        generation=sum(status.restart_count for status in pod.status.container_statuses or ()),
        rank=rank,
        rank_by_header=by_header,
        roles=defaults.roles or facts.roles(),
        engine=facts.engine(),
        app_protocol=spec.app_protocol,
        weight=facts.weight(),
        labels=facts.labels,
        # vLLM gives each data-parallel rank the configured port plus the rank.
        events_port=None if events is None else events + rank,
        replay_port=None if replay is None else replay + rank,
        event_ranks=1 if by_header else facts.event_ranks(),
        metrics_port=facts.number(names.METRICS_PORT, None),
        load_port=None if load is None else load + rank,
        block_size=facts.number(names.BLOCK_SIZE, None),
        instance_id=dynamo.instance_id(name) if is_dynamo else None,
    )


class _Facts:
    """What the labels and annotations of a pod say, with remarks on values that make no sense."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.labels = pod.metadata.labels or {}
        self.dynamo = dynamo_worker(self.labels)
        self.annotations = pod.metadata.annotations or {}
        self.remarks: list[str] = []

    def active(self, ports: tuple[int, ...]) -> dict[int, int]:
        """Port by rank, without those that the pod says are not active."""
        ranks = dict(enumerate(ports))
        text = self.annotations.get(names.ACTIVE_PORTS)
        if text is None:
            return ranks
        active = {part.strip() for part in text.split(",")} - {""}
        unknown = active - {str(port) for port in ports}
        if unknown:
            self.remarks.append(
                f"{names.ACTIVE_PORTS}={text!r}: no target port of the pool: {', '.join(sorted(unknown))}"
            )
        return {rank: port for rank, port in ranks.items() if str(port) in active}

    def roles(self) -> frozenset[Role]:
        text = self._text(names.ROLE) or self.labels.get(names.LLMD_ROLE)
        if text is None:
            component = self.labels.get(names.DYNAMO_TYPE, "") if self.dynamo else ""
            return ROLES.get(component, ANY_ROLE)
        if text not in ROLES:
            self.remarks.append(f"role {text!r}: expected one of {', '.join(ROLES)}; taken as both")
        return ROLES.get(text, ANY_ROLE)

    def engine(self) -> str:
        own = self._text(names.ENGINE)
        return own or self.labels.get(names.LLMD_ENGINE) or self.labels.get(names.OLD_ENGINE) or "vllm"

    def number(self, name: str, default: int | None) -> int | None:
        text = self._text(name)
        if text is None:
            return default
        if text.isdecimal() and 1 <= int(text) <= MAX_PORT:
            return int(text)
        self.remarks.append(f"{name}={text!r}: expected a number from 1 to {MAX_PORT}; ignored")
        return default

    def event_ranks(self) -> int:
        return min(self.number(names.EVENT_RANKS, None) or 1, _MAX_EVENT_RANKS)

    def rank_by_header(self, ports: int) -> bool:
        """Whether the ranks behind the pod's only port are endpoints of their own."""
        wanted = self._text(names.RANK_BY_HEADER) == "true" and not self.dynamo
        if wanted and ports > 1:
            self.remarks.append(f"{names.RANK_BY_HEADER}: expected a pool with one target port; ignored")
        return wanted and ports == 1

    def weight(self) -> float:
        text = self._text(names.WEIGHT)
        if text is None:
            return 1.0
        if _SHARE.fullmatch(text):
            return float(text)
        self.remarks.append(f"{names.WEIGHT}={text!r}: expected a number from 0 to 1, as in 0.5; taken as 1")
        return 1.0

    def _text(self, name: str) -> str | None:
        return self.annotations.get(name, self.labels.get(name))


def _running(pod: Pod) -> bool:
    """Running, and not on its way out."""
    return pod.status.phase == "Running" and not pod.metadata.deletion_timestamp


def _ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or ())


def _container_ready(pod: Pod, port: int) -> bool:
    """Whether the container that declares `port` is ready; where none does, whether all are."""
    owner = _owner(pod, port)
    ready = {container.name: container.ready for container in pod.status.container_statuses or ()}
    return ready.get(owner.name, False) if owner else bool(ready) and all(ready.values())


def _address(pod: Pod, *, ipv6: bool) -> str:
    """The pod's address of the wanted family, else the one it has."""
    primary = pod.status.pod_ip or ""
    if primary and (":" in primary) == ipv6:
        return primary
    all_of_it = [primary, *(entry.ip for entry in pod.status.pod_ips or ())]
    wanted = [address for address in all_of_it if address and (":" in address) == ipv6]
    return next((address for address in (*wanted, *all_of_it) if address), "")


def _owner(pod: Pod, port: int) -> Container | None:
    """The container that declares `port`."""
    for container in pod.spec.containers:
        if any(declared.container_port == port for declared in container.ports or ()):
            return container
    return None


def _port_named(pod: Pod, name: str) -> int | None:
    for container in pod.spec.containers:
        for declared in container.ports or ():
            if declared.name == name:
                return declared.container_port
    return None


def _undeclared(pod: Pod, ranks: Mapping[int, int]) -> tuple[str, ...]:
    """Declared ports are documentation, so a port that none declares is still used, but worth a word."""
    missing = [str(port) for port in ranks.values() if _owner(pod, port) is None]
    return (f"no container declares port {', '.join(missing)}",) if missing else ()
