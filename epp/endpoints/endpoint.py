"""One routable `ip:port` and what is known of the worker behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

HostPort = NewType("HostPort", str)
"""`ip:port`, an IPv6 address in brackets: the form of the destination header (protocol rule P8)."""

Place = NewType("Place", str)
"""What tells an endpoint from all others that exist now: its `ip:port`, and its rank where several share that."""

Incarnation = tuple[str, str, int, Place]
"""Name, uid, generation and place: what tells one run of a worker from all others."""

HTTP = "http"
H2C = "kubernetes.io/h2c"
"""Values of `spec.appProtocol` of an InferencePool: HTTP/1.1, and HTTP/2 without TLS."""


class Role(StrEnum):
    """What a worker does for a request."""

    DECODE = "decode"
    PREFILL = "prefill"
    ENCODE = "encode"


def host_port(address: str, port: int) -> HostPort:
    """`address:port`, with brackets around an IPv6 address."""
    return HostPort(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One (worker, target port) pair; each data-parallel rank with a port of its own is its own endpoint.

    So are ranks that share a port, where the worker lets a header choose among them (`rank_by_header`).
    Two endpoints are the same incarnation when `name`, `uid`, `generation` and `place` agree: a restarted worker at
    the same address is another one, with an empty cache and no load.
    """

    name: str
    address: str
    port: int
    uid: str = ""
    generation: int = 0
    rank: int = 0
    rank_by_header: bool = False
    """Other ranks have the same port: `x-data-parallel-rank` tells the worker which one is meant."""
    roles: frozenset[Role] = frozenset({Role.DECODE, Role.PREFILL})
    engine: str = "vllm"
    app_protocol: str = HTTP
    """What the gateway speaks to it: HTTP or H2C, as the pool says."""
    weight: float = 1.0
    """0..1: beside workers of weight 1, the share of the requests that consider it.

    0: picked only when nothing else is left.
    """
    labels: Mapping[str, str] = field(default_factory=dict)
    events_port: int | None = None
    """Port of the rank's own ZMQ publisher; None: no KV events from here."""
    event_ranks: int = 1
    """Ranks behind this endpoint that publish, on `events_port` and the ports that follow it."""
    replay_port: int | None = None
    metrics_port: int | None = None
    """Port of `/metrics`; None: the serving port."""
    load_port: int | None = None
    """Port on which SGLang's rank publishes its load; None: not known."""
    block_size: int | None = None
    """Tokens per KV block where it differs from the pool's setting."""
    instance_id: int | None = None
    """Dynamo's worker instance id, which its sidecar demands in a header; None: not a Dynamo worker."""
    host_port: HostPort = field(init=False)
    place: Place = field(init=False, compare=False)
    incarnation: Incarnation = field(init=False, compare=False)
    """What tells this run of the worker from an earlier one at the same place."""

    def __post_init__(self) -> None:
        address = host_port(self.address, self.port)
        place = Place(f"{address} rank {self.rank}" if self.rank_by_header else address)
        object.__setattr__(self, "host_port", address)
        object.__setattr__(self, "place", place)
        object.__setattr__(self, "incarnation", (self.name, self.uid, self.generation, place))
