"""Gives snapshots to processes that start late, in small steps beside the requests."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import structlog
import zmq

from epp.kvcache.drain import Drain
from epp.peers.curve import Context, CurveKey
from epp.peers.handover import BEGIN, DATA, END, HELLO, MORE, NO, OPENING, VERSION, WINDOW, Hello, Opening

_log = structlog.get_logger(__name__)

_SHARE = 0.25
"""Of a core that giving may take."""
_MOST_AT_ONCE = 2
_PATIENCE_SECONDS = 10.0
"""Without a word from a taker after which it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What there is to give."""

    warm: Callable[[], bool]
    opening: Callable[[], Opening]
    snapshot: Callable[[], Iterator[bytes]]


@dataclass(slots=True, eq=False)
class _Taker:
    socket: zmq.Socket[bytes]
    identity: bytes
    credit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WINDOW))


class Giver:
    """Answers at its places between `start` and `stop`."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._drain: Drain | None = None
        self._sockets: list[zmq.Socket[bytes]] = []
        self._reads: dict[zmq.Socket[bytes], Callable[[], bool]] = {}
        self._takers: dict[bytes, _Taker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.given = 0
        """Snapshots that were given to the end."""

    def start(self, context: Context, drain: Drain, places: Iterable[str], key: CurveKey | None) -> None:
        """Listen; tcp only with a key, as the secret of the prefix keys goes with it. Raises OSError."""
        self._drain = drain
        for place in places:
            if place.startswith("tcp:") and key is None:
                continue
            router = context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            router.setsockopt(zmq.IPV6, 1)
            router.setsockopt(zmq.MAXMSGSIZE, 1024)
            if place.startswith("tcp:") and key is not None:
                key.serve(router)
            self._sockets.append(router)
            try:
                router.bind(place)
            except zmq.ZMQError as error:
                raise OSError(f"{place}: {error.strerror}") from None
            self._reads[router] = read = _reader(router, self._hear)
            drain.watch(router, read)

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for socket in self._sockets:
            if self._drain is not None:
                self._drain.forget(socket)
            socket.close(linger=0)
        self._sockets.clear()
        self._reads.clear()

    def _hear(self, socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
        if len(frames) != 3:
            return
        identity, kind, _ = frames
        taker = self._takers.get(identity)
        if kind == HELLO:
            _send(socket, identity, HELLO, msgspec.msgpack.encode(Hello(VERSION, self._stock.warm())))
        elif kind == MORE and taker is not None:
            taker.credit.release()
        elif kind == BEGIN and taker is None:
            self._begin(_Taker(socket, identity))

    def _begin(self, taker: _Taker) -> None:
        if not self._stock.warm() or len(self._takers) >= _MOST_AT_ONCE:
            _send(taker.socket, taker.identity, NO, b"")
            return
        self._takers[taker.identity] = taker
        task = asyncio.create_task(self._give(taker), name="give a snapshot")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give(self, taker: _Taker) -> None:
        started, size = time.monotonic(), 0
        try:
            _send(taker.socket, taker.identity, OPENING, msgspec.msgpack.encode(self._stock.opening()))
            self._look_again(taker.socket)
            steps = self._stock.snapshot()
            while True:
                begun = time.perf_counter()
                chunk = next(steps, None)
                spent = time.perf_counter() - begun
                if chunk is None:
                    break
                if chunk:
                    await asyncio.wait_for(taker.credit.acquire(), _PATIENCE_SECONDS)
                    _send(taker.socket, taker.identity, DATA, chunk)
                    self._look_again(taker.socket)
                    size += len(chunk)
                await asyncio.sleep(spent * (1 / _SHARE - 1))
            _send(taker.socket, taker.identity, END, b"")
            self.given += 1
            _log.info("gave a snapshot to a peer", bytes=size, seconds=round(time.monotonic() - started, 3))
        except TimeoutError:
            _log.info("a peer that took a snapshot went silent", bytes=size)
        except Exception:  # noqa: BLE001 - whoever waits for it goes on without
            _log.exception("giving a snapshot failed")
            _send(taker.socket, taker.identity, NO, b"")
        finally:
            del self._takers[taker.identity]

    def _look_again(self, socket: zmq.Socket[bytes]) -> None:
        """Sending on a ZMQ socket may take the signal that something can be read."""
        if self._drain is not None:
            self._drain.wake(self._reads[socket])


def _send(socket: zmq.Socket[bytes], identity: bytes, kind: bytes, payload: bytes) -> None:
    try:
        socket.send_multipart([identity, kind, payload], zmq.NOBLOCK)
    except zmq.ZMQError:
        pass  # it is gone, or does not read: its patience and ours end


def _reader(socket: zmq.Socket[bytes], hear: Callable[[zmq.Socket[bytes], list[bytes]], None]) -> Callable[[], bool]:
    def read() -> bool:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        hear(socket, frames)
        return True

    return read
