"""Engines that connect to us: we bind one socket for each rank, and the topic of a message says who sent it.

A vLLM whose publisher's endpoint names a host (`tcp://picker:5557`) connects there, rank n to the port plus n. Topics
are `kv@NAME@MODEL` by llm-d's convention, or NAME alone; NAME is the pod's name, its address, or `address:port`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import zmq

from epp.endpoints.endpoint import Endpoint, host_port
from epp.kvcache.drain import Drain
from epp.kvcache.stream import DISCONNECTED, MAX_WAITING, MONITORED, Stream, StreamOptions, harden, next_event

_PREFIX = "kv"


@dataclass(frozen=True, slots=True)
class Bind:
    """Where engines connect: `ranks` ports from `port` on."""

    host: str
    port: int
    ranks: int = 1


@dataclass(slots=True)
class CentralCounts:
    """What came to the bound sockets."""

    unknown: int = 0
    """Messages whose topic names no endpoint of the pool, or several."""


class Central:
    """Binds between `open` and `close`, and gives each message to the stream of the endpoint that its topic names."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], drain: Drain, options: StreamOptions) -> None:
        self._context = context
        self._drain = drain
        self._options = options
        self._sockets: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
        self._streams: defaultdict[tuple[str, int], list[Stream]] = defaultdict(list)
        self._latest: Stream | None = None
        self.counts = CentralCounts()

    def open(self, bind: Bind) -> None:
        """Listen. Raises OSError when a port is taken."""
        for rank in range(bind.ranks):
            live = self._context.socket(zmq.SUB)
            live.setsockopt(zmq.RCVHWM, self._options.high_water_mark)
            live.setsockopt(zmq.SUBSCRIBE, self._options.topic.encode())
            harden(live, self._options)
            monitor = live.get_monitor_socket(MONITORED)
            self._sockets.append((live, monitor))
            try:
                live.bind(f"tcp://{host_port(bind.host, bind.port + rank)}")
            except zmq.ZMQError as error:
                self.close()
                raise OSError(error.errno, f"port {bind.port + rank}: {error}") from None
            self._drain.watch(live, partial(self._read, live, rank))
            self._drain.watch(monitor, partial(self._read_monitor, monitor, rank))

    def close(self) -> None:
        """Listen no more."""
        for live, monitor in self._sockets:
            self._drain.forget(live)
            self._drain.forget(monitor)
            live.disable_monitor()
            monitor.close(linger=0)
            live.close(linger=0)
        self._sockets.clear()

    def attach(self, endpoint: Endpoint, rank: int, stream: Stream) -> Callable[[], None]:
        """Messages that name `endpoint` on the port of `rank` are for `stream`; call what is returned to end that."""
        keys = [(name, rank) for name in _names(endpoint)]
        for key in keys:
            self._streams[key].append(stream)
        return partial(self._detach, keys, stream)

    def _detach(self, keys: list[tuple[str, int]], stream: Stream) -> None:
        if self._latest is stream:
            self._latest = None
        for key in keys:
            self._streams[key].remove(stream)
            if not self._streams[key]:
                del self._streams[key]

    def _read(self, live: zmq.Socket[bytes], rank: int) -> bool:
        """One message, unless those before it still wait for the index."""
        if live.closed:
            return False
        if self._latest is not None and self._latest.waiting >= MAX_WAITING:
            self._latest.counts.full_queues += 1
            return True
        try:
            frames = live.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        streams = self._streams.get((identity(frames[0]), rank), ())
        if len(streams) == 1:
            self._latest = streams[0]
            self._latest.receive(frames)
        else:
            self.counts.unknown += 1
        return True

    def _read_monitor(self, monitor: zmq.Socket[bytes], rank: int) -> bool:
        """An engine went, and nothing says which: all of that port may have missed something until they speak again."""
        event = next_event(monitor)
        if event == DISCONNECTED:
            for stream in {stream for key, streams in self._streams.items() if key[1] == rank for stream in streams}:
                stream.lost()
        return event is not None


def identity(topic: bytes) -> str:
    """The name in a topic."""
    parts = topic.decode(errors="replace").split("@")
    return parts[1] if len(parts) > 1 and parts[0] == _PREFIX else parts[0]


def _names(endpoint: Endpoint) -> Iterator[str]:
    yield from {endpoint.name, endpoint.name.removesuffix(f"-rank-{endpoint.rank}"), endpoint.address}
    yield endpoint.host_port
