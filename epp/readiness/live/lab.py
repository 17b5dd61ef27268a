"""What live checks work with: the chain, where its parts listen, and a client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from epp.conformance import address
from epp.conformance.check import Check as KitCheck
from epp.conformance.check import Result as KitResult
from epp.conformance.checks import ALL as KIT
from epp.conformance.lab import Described
from epp.conformance.run import Plan, run_checks
from epp.conformance.stream import Limits
from epp.endpoints.endpoint import host_port
from epp.readiness.chain import Chain, UnreadableError, is_ready
from epp.readiness.checks.picker import picker_port
from epp.readiness.checks.workers import ports_of
from epp.readiness.rule import NotApplicableError
from epp.readiness.snapshot.core_objects import Pod
from epp.readiness.words import first_of, flags_of, port_number, settings_of

MOST_PICKERS = 3
"""EPP pods that are asked; a fault shows in the first few."""
HEALTH_PORT = 9003
METRICS_PORT = 9090


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What the user says about where things listen; None: by the snapshot."""

    picker: str | None = None
    """`host:port` of the EPP's ext_proc service."""
    health: str | None = None
    """`host:port` of its gRPC health service."""
    metrics: str | None = None
    """`http://host:port` of its metrics."""
    admin: str | None = None
    """`http://host:port` of its admin port."""
    gateway: str | None = None
    """URL of the Gateway."""
    host: str | None = None
    """Hostname of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """How much traffic, and what may be broken."""

    model: str | None = None
    requests: int = 20
    seconds: float = 10.0
    """Wait for one answer."""
    wait_seconds: float = 60.0
    """Wait for the chain to answer at all, and to heal."""
    kill_command: str | None = None
    """Command that kills the worker `{pod}` of `{namespace}`."""
    stop_command: str | None = None
    """Command that stops every EPP of the pool in `{namespace}`."""
    start_command: str | None = None
    """Command that starts them again."""
    perf_seconds: float = 0.0
    """Length of the load; 0: none."""
    perf_parallel: int = 8
    api_key: str | None = field(default=None, repr=False)


@dataclass(slots=True, kw_only=True)
class Lab:
    """One chain, to be asked."""

    chain: Chain
    places: Places
    demands: Demands
    session: aiohttp.ClientSession
    seen: str = ""
    """What the running check saw that is worth telling when it passes."""
    kit: dict[str, Mapping[str, KitResult]] = field(default_factory=dict)
    """Results of the protocol kit by target."""

    def pickers(self) -> list[tuple[str, str]]:
        """`host:port` of ext_proc and of health, for each EPP pod that is asked. Raises UnreadableError."""
        if self.places.picker is not None:
            host = address.target(self.places.picker)[0]
            return [(self.places.picker, self.places.health or address.join(host, HEALTH_PORT))]
        found = picker_port(self.chain)
        pods = [pod for pod in self.chain.picker_pods if is_ready(pod)][:MOST_PICKERS]
        places = []
        for pod in pods:
            number = None if found is None else port_number(pod, found.target_port, found.port)
            if number is not None:
                places.append((_at(pod, number), self.places.health or _at(pod, _health_port(self.chain, pod))))
        if not places:
            raise UnreadableError("no ready pod of the EPP is known")
        return places

    def endpoints(self) -> dict[str, Pod]:
        """The pool's ready endpoints, `ip:port`. Raises UnreadableError."""
        return {_at(pod, port): pod for pod in self.chain.ready_workers for port in ports_of(self.chain, pod)}

    async def kit_results(self, target: str, health: str, names: Sequence[str]) -> list[KitResult]:
        """The protocol kit's results of checks by name; all that this command uses are run at once."""
        if target not in self.kit:
            plan = Plan(
                target=address.target(target),
                health=None if health == target else address.target(health),  # at one port: with its TLS
                described=Described(endpoints=tuple(self.endpoints()), model=self.demands.model or "conformance"),
                limits=Limits(seconds=5.0, check_seconds=30.0),
            )
            results = await run_checks(plan, _used())
            self.kit[target] = {result.check.name: result for result in results}
        return [self.kit[target][name] for name in names]

    def metrics_places(self) -> list[str]:
        """URLs of the metrics of all EPP pods. Raises UnreadableError."""
        if self.places.metrics is not None:
            return [self.places.metrics.rstrip("/") + "/metrics"]
        pods = [pod for pod in self.chain.picker_pods if is_ready(pod)]
        if not pods:
            raise UnreadableError("no ready pod of the EPP is known")
        return [f"http://{_at(pod, _metrics_port(self.chain, pod))}/metrics" for pod in pods]

    def gateway_url(self) -> str:
        """Where requests go. Raises NotApplicableError when nothing tells."""
        if self.places.gateway is not None:
            return self.places.gateway.rstrip("/")
        gateway = self.chain.gateway
        value = next((one.value for one in gateway.status.addresses or () if one.value), None)
        listener = next((one for one in gateway.spec.listeners if one.protocol == "HTTP"), None)
        if value is None or listener is None:
            raise NotApplicableError("the Gateway has no address and plain HTTP listener: give --url")
        return f"http://{address.join(value, listener.port)}"

    def host(self) -> str | None:
        """A hostname of the route; None: the Gateway's address serves."""
        if self.places.host is not None:
            return self.places.host
        names = [name for route in self.chain.attached for name in route.spec.hostnames or ()]
        return names[0].replace("*.", "readiness.") if names else None


KIT_NAMES: dict[int, tuple[str, ...]] = {
    36: ("pick.header-and-metadata", "pick.same-in-both", "pick.form", "pick.in-pool"),
    37: ("subset.binding", "subset.several"),
    38: ("subset.empty-503", "subset.none-eligible-503"),
    39: ("pick.header-only", "request.order", "request.same-bytes", "request.one-end", "request.ends-by-trailers"),
}
"""Checks of the protocol kit, by our numbers."""


def _used() -> list[KitCheck]:
    names = {name for of_number in KIT_NAMES.values() for name in of_number}
    return [check for check in KIT if check.name in names or check.subject == "health"]


def _at(pod: Pod, port: int) -> str:
    return host_port(pod.status.pod_ip or "", port)


def _health_port(chain: Chain, pod: Pod) -> int:
    return _port_of(chain, pod, "EPP_HEALTH_PORT", ("--grpc-health-port", "--grpcHealthPort"), "health", HEALTH_PORT)


def _metrics_port(chain: Chain, pod: Pod) -> int:
    return _port_of(chain, pod, "EPP_METRICS_PORT", ("--metrics-port", "--metricsPort"), "metrics", METRICS_PORT)


def _port_of(chain: Chain, pod: Pod, setting: str, flags: tuple[str, ...], part: str, default: int) -> int:
    """By a setting, a flag, a container port whose name holds `part`, else the default."""
    for container in pod.spec.containers:
        said = first_of(settings_of(chain, pod, container)[0], setting) or first_of(flags_of(container), *flags)
        if said and said.isdecimal() and said != "0":
            return int(said)
    named = (port for it in pod.spec.containers for port in it.ports or () if part in (port.name or ""))
    return next((port.container_port for port in named), default)
