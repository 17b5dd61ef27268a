"""SGLang's load channel: each rank publishes its queue over ZMQ as it changes, and once a second.

Messages are `[topic, number, payload]` on a PUB socket of its own (SGLang from 0.5.20 on, `--load-publish-endpoint`);
the payload is a msgpack array that begins with `LoadStat`. Where no port is configured, `GET /server_info` names it.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
import structlog
import zmq
from msgspec import Meta

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics
from epp.endpoints.pool import Pool
from epp.kvcache.drain import Drain
from epp.kvcache.source_discovery import MAX_RANKS, ask
from epp.kvcache.sources import address

_log = structlog.get_logger(__name__)

_WAITING = 8
"""Messages that wait in a socket; only the newest counts."""
_MOST_BYTES = 64 * 1024
_ASKED_AT_ONCE = 16

_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Port = Annotated[int, Meta(ge=1, le=65535)]


class LoadStat(msgspec.Struct, array_like=True, tag="LoadStat", frozen=True, gc=False):
    """One message; SGLang appends fields in later versions, which are left unread."""

    running: _Count
    waiting: _Count
    tokens: _Count
    """In the KV cache, of running requests."""
    capacity: _Count
    """Tokens that the KV cache can hold."""


class _Events(msgspec.Struct):
    load_endpoint_port_base: _Port | None = None
    dp_size: Annotated[int, Meta(ge=1)] = 1


class _Info(msgspec.Struct):
    kv_events: _Events | None = None


_decode = msgspec.msgpack.Decoder(LoadStat).decode
_decode_info = msgspec.json.Decoder(_Info).decode


def load_ports(answer: bytes, endpoint: Endpoint, *, alone: bool) -> list[int]:
    """The ports of the endpoint's ranks in an answer to `/server_info`; none in one that names none.

    `alone`: no other endpoint is at its address, so that all ranks are behind this one.
    """
    try:
        said = _decode_info(answer).kv_events
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    if said is None or said.load_endpoint_port_base is None:
        return []
    ranks = range(min(said.dp_size, MAX_RANKS)) if alone else [endpoint.rank]
    ports = [said.load_endpoint_port_base + rank for rank in ranks if rank < said.dp_size]
    return [port for port in ports if port <= 65535]


class PushedLoad:
    """Follows the load channels of the pool's endpoints between `start` and `stop`."""

    def __init__(
        self, pool: Pool, metrics: EngineMetrics, clock: Callable[[], float], *, ask_seconds: float | None = None
    ) -> None:
        """`ask_seconds`: how long an SGLang engine has to name its port, where none is set; None: it is not asked."""
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._ask_seconds = ask_seconds
        self._few_at_once = asyncio.Semaphore(_ASKED_AT_ONCE)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._drain: Drain | None = None
        self._channels: dict[int, _Channels] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Follow the endpoints that are in the pool, and from now on all that join."""
        self._context = zmq.Context(io_threads=1)
        self._drain = Drain()
        snapshot = self._pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            self._join(column, endpoint)
        self._pool.on_join(self._join)
        self._pool.on_leave(self._leave)

    async def stop(self) -> None:
        """Close all sockets."""
        for column in {*self._channels, *self._asking}:
            self._leave(column, None)
        if self._drain is not None:
            self._drain.close()
            self._drain = None
        if self._context is not None:
            context, self._context = self._context, None
            await asyncio.to_thread(context.term)

    def _join(self, column: int, endpoint: Endpoint) -> None:
        if self._context is None:
            return
        if endpoint.load_port is not None:
            ports = range(endpoint.load_port, endpoint.load_port + endpoint.event_ranks)
            self._follow(column, endpoint, [port for port in ports if port <= 65535])
        elif endpoint.engine == "sglang" and self._ask_seconds is not None:
            self._asking[column] = asyncio.create_task(self._ask(column, endpoint, self._ask_seconds), name="load port")

    async def _ask(self, column: int, endpoint: Endpoint, seconds: float) -> None:
        try:
            async with self._few_at_once, asyncio.timeout(seconds):
                answer = await ask(endpoint, "/server_info")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        others = (other for other in self._pool.snapshot().endpoints if other is not endpoint)
        ports = load_ports(answer, endpoint, alone=all(other.address != endpoint.address for other in others))
        self._follow(column, endpoint, ports)

    def _follow(self, column: int, endpoint: Endpoint, ports: list[int]) -> None:
        if ports and self._context is not None and self._drain is not None:
            told = partial(self._told, column)
            self._channels[column] = _Channels(
                self._context, self._drain, [address(endpoint, port) for port in ports], told
            )

    def _told(self, column: int, stats: "list[LoadStat]") -> None:
        """The newest word of each rank behind the endpoint."""
        self._metrics.note_load(
            column,
            queued=float(sum(stat.waiting for stat in stats)),
            running=float(sum(stat.running for stat in stats)),
            kv_used=max((min(stat.tokens / stat.capacity, 1.0) for stat in stats if stat.capacity), default=None),
            now=self._clock(),
        )

    def _leave(self, column: int, _endpoint: Endpoint | None) -> None:
        if (asking := self._asking.pop(column, None)) is not None:
            asking.cancel()
        if (channels := self._channels.pop(column, None)) is not None:
            channels.close()


class _Channels:
    """The sockets of one endpoint, one for each rank behind it."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        drain: Drain,
        places: list[str],
        told: Callable[[list[LoadStat]], None],
    ) -> None:
        self._drain = drain
        self._told = told
        self._newest: dict[int, LoadStat] = {}
        self._warned = False
        self._sockets: list[zmq.Socket[bytes]] = []
        for rank, place in enumerate(places):
            socket = context.socket(zmq.SUB)
            for option, value in _OPTIONS.items():
                socket.setsockopt(option, value)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            self._sockets.append(socket)
            drain.watch(socket, partial(self._read, rank, socket))
            socket.connect(place)

    def close(self) -> None:
        for socket in self._sockets:
            self._drain.forget(socket)
            socket.close(linger=0)
        self._sockets.clear()

    def _read(self, rank: int, socket: "zmq.Socket[bytes]") -> bool:
        if not self._sockets:
            return False
        try:
            payload = socket.recv_multipart(zmq.NOBLOCK)[-1]
        except zmq.Again:
            return False
        try:
            self._newest[rank] = _decode(payload)
        except (msgspec.MsgspecError, RecursionError):
            self._warn()
            return True
        self._told(list(self._newest.values()))
        return True

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("a load channel says what is no load", expected="SGLang's LoadStat")


_OPTIONS = {
    zmq.RCVHWM: _WAITING,
    zmq.LINGER: 0,
    zmq.IPV6: 1,
    zmq.MAXMSGSIZE: _MOST_BYTES,
    zmq.RECONNECT_IVL: 200,
    zmq.RECONNECT_IVL_MAX: 5_000,
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 15_000,
}
