"""Begins where a warm peer is: its index, its secret and what it learnt, taken while live events wait."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import structlog
import zmq

from epp.kvcache.drain import Drain
from epp.kvcache.image import RankImage
from epp.kvcache.keys import secret_id
from epp.kvcache.snapshot import Decoder, SnapshotError
from epp.peers.curve import Context, CurveKey
from epp.peers.handover import BEGIN, DATA, END, HELLO, MORE, OPENING, Hello, Learnt, Opening

_log = structlog.get_logger(__name__)

_HELLO_SECONDS = 2.0
"""That a peer has to say whether it is warm."""
_SILENCE_SECONDS = 5.0
_STEP_SECONDS = 0.001

Answer = tuple[bytes, bytes]


class NoSnapshotError(Exception):
    """There is none to be had; the text says why."""

    def __init__(self, text: str, *, again: bool = True) -> None:
        super().__init__(text)
        self.again = again
        """Whether another peer may have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Where what was taken goes."""

    take_secret: Callable[[bytes], bool]
    offer: Callable[[Iterable[RankImage]], None]
    learn: Callable[[Learnt], None]
    max_blocks: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What came."""

    peer: str
    ranks: int
    blocks: int
    seconds: float


class Taker:
    """Asks peers for a snapshot, all of them at first and then one."""

    def __init__(self, context: Context, drain: Drain, key: CurveKey | None, shelf: Shelf) -> None:
        self._context = context
        self._drain = drain
        self._key = key
        self._shelf = shelf
        self._reads: dict[zmq.Socket[bytes], Callable[[], bool]] = {}

    async def take(self, places: Iterable[str]) -> Taken:
        """A snapshot from the first of `places` that is warm. Raises NoSnapshotError."""
        started = time.monotonic()
        usable = [place for place in places if self._key is not None or not place.startswith("tcp:")]
        place = await self._warm_one(usable)
        async with self._line(place) as (socket, answers):
            socket.send_multipart([BEGIN, b""])
            self._drain.wake(self._reads[socket])
            opening = await _opening(answers)
            images, blocks = await self._images(socket, answers, opening)
        self._shelf.offer(images)
        if opening.learnt is not None:
            self._shelf.learn(opening.learnt)
        return Taken(place, len(images), blocks, time.monotonic() - started)

    async def _warm_one(self, places: list[str]) -> str:
        asked = [asyncio.create_task(self._is_warm(place)) for place in places]
        try:
            for answer in asyncio.as_completed(asked):
                place = await answer
                if place is not None:
                    return place
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise NoSnapshotError("no peer is warm", again=False)

    async def _is_warm(self, place: str) -> str | None:
        async with self._line(place) as (socket, answers):
            socket.send_multipart([HELLO, b""])
            self._drain.wake(self._reads[socket])
            try:
                kind, payload = await asyncio.wait_for(answers.get(), _HELLO_SECONDS)
                hello = msgspec.msgpack.decode(payload, type=Hello)
            except (TimeoutError, msgspec.DecodeError):
                return None
            return place if kind == HELLO and hello.warm else None

    async def _images(
        self, socket: zmq.Socket[bytes], answers: "asyncio.Queue[Answer]", opening: Opening
    ) -> tuple[list[RankImage], int]:
        if not self._shelf.take_secret(opening.secret):
            raise NoSnapshotError("its prefix keys have another secret than those in use here", again=False)
        decoder = Decoder(secret_id(opening.secret), self._shelf.max_blocks)
        images: list[RankImage] = []
        try:
            while True:
                kind, payload = await _next(answers)
                if kind != DATA:
                    break
                socket.send_multipart([MORE, b""])
                self._drain.wake(self._reads[socket])  # sending may take the signal that something can be read
                images += [image async for image in _paced(decoder, payload)]
        except SnapshotError as error:
            raise NoSnapshotError(f"it is damaged: {error}") from None
        if kind != END or not decoder.finished:
            raise NoSnapshotError("the peer gave it up")
        return images, decoder.blocks

    @asynccontextmanager
    async def _line(self, place: str) -> AsyncIterator[tuple[zmq.Socket[bytes], "asyncio.Queue[Answer]"]]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, 4 << 20)
        if self._key is not None and place.startswith("tcp:"):
            self._key.connect(socket)
        answers: asyncio.Queue[Answer] = asyncio.Queue()

        def read() -> bool:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return False  # also once it is closed
            if len(frames) == 2:
                answers.put_nowait((frames[0], frames[1]))
            return True

        socket.connect(place)
        self._reads[socket] = read
        self._drain.watch(socket, read)
        try:
            yield socket, answers
        finally:
            self._drain.forget(socket)
            del self._reads[socket]
            socket.close(linger=0)


async def _opening(answers: "asyncio.Queue[Answer]") -> Opening:
    kind, payload = await _next(answers)
    if kind != OPENING:
        raise NoSnapshotError("the peer has none to give now")
    try:
        return msgspec.msgpack.decode(payload, type=Opening)
    except msgspec.DecodeError as error:
        raise NoSnapshotError(f"it is damaged: {error}") from None


async def _next(answers: "asyncio.Queue[Answer]") -> Answer:
    try:
        return await asyncio.wait_for(answers.get(), _SILENCE_SECONDS)
    except TimeoutError:
        raise NoSnapshotError("the peer went silent") from None


async def _paced(decoder: Decoder, data: bytes) -> AsyncIterator[RankImage]:
    begun = time.perf_counter()
    for image in decoder.feed(data):
        if image is not None:
            yield image
        if time.perf_counter() - begun > _STEP_SECONDS:
            await asyncio.sleep(0)
            begun = time.perf_counter()
