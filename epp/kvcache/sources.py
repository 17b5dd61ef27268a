"""Where the events of each rank behind an endpoint come from."""

from dataclasses import dataclass

from epp.endpoints.endpoint import Endpoint, host_port

DYNAMO = "dynamo"
"""Engine name of workers whose `events_port` is a publisher of Dynamo's event plane."""


@dataclass(frozen=True, slots=True)
class Source:
    """The sockets of one publisher, as ZMQ addresses."""

    rank: int
    events: str | None
    """None: the publisher connects to us."""
    replay: str | None = None
    topic: str | None = None
    """Prefix of the topics to follow; None: as the settings say."""
    block_size: int | None = None


def configured(endpoint: Endpoint) -> list[Source]:
    """The publishers that an endpoint names: one for each of its ranks, on its ports and those that follow them."""
    if endpoint.events_port is None:
        return []
    has_replay = endpoint.replay_port is not None and endpoint.engine != DYNAMO
    return [
        Source(
            rank=endpoint.rank + i,
            events=address(endpoint, endpoint.events_port + i),
            replay=address(endpoint, (endpoint.replay_port or 0) + i) if has_replay else None,
        )
        for i in range(endpoint.event_ranks)
    ]


def connecting(endpoint: Endpoint) -> list[Source]:
    """The publishers of an endpoint that connect to us; Dynamo's never do."""
    if endpoint.engine == DYNAMO:
        return configured(endpoint)
    replay = endpoint.replay_port
    return [
        Source(endpoint.rank + i, None, None if replay is None else address(endpoint, replay + i))
        for i in range(endpoint.event_ranks)
    ]


def address(endpoint: Endpoint, port: int) -> str:
    """A port of the worker as a ZMQ address."""
    return f"tcp://{host_port(endpoint.address, port)}"
