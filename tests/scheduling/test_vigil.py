"""A worker that holds requests and falls silent is missed in time, by the clock of the test over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.endpoints.pool import Pool
from epp.scheduling.load import Load, Work
from epp.scheduling.vigil import LOOK_SECONDS, SILENCE_SECONDS, Vigil
from tests.waiting import until

WORK = Work(prefill_tokens=10, context_tokens=10)
BAR_SECONDS = 1.0
"""Nobody may be picked for longer after the last word of a worker that died under load."""


class Worker:
    """Answers each question with one word, until it hangs or is killed."""

    def __init__(self, *, word: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", close: bool = False) -> None:
        self.questions = 0
        self.hangs = False
        self.word = word
        self.close = close
        self.transports: list[asyncio.Transport] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        self._server.close()
        for transport in self.transports:
            transport.abort()
        await self._server.wait_closed()


class _Served(asyncio.Protocol):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._worker.transports.append(transport)

    def data_received(self, _data: bytes) -> None:
        self._worker.questions += 1
        if not self._worker.hangs:
            self._transport.write(self._worker.word)
            if self._worker.close:
                self._transport.close()


class Watch:
    """A vigil whose time passes only when the test says so."""

    def __init__(self, *ports: int, per_second: float = 1000.0) -> None:
        self.now = 100.0
        self.lost: list[tuple[str, float]] = []
        self.pool = Pool()
        self.load = Load(self.clock)
        self.metrics = EngineMetrics(stale_seconds=5.0)
        for listener in (self.load.join, self.metrics.join):
            self.pool.on_join(listener)
        for listener in (self.load.leave, self.metrics.leave):
            self.pool.on_leave(listener)
        self.registry = CollectorRegistry()
        self.vigil = Vigil(
            self.pool, self.load, self.metrics, self._lose, self.registry, per_second=per_second, clock=self.clock
        )
        self.pool.replace(Endpoint(name=f"w{i}", address="127.0.0.1", port=port) for i, port in enumerate(ports))
        self.now += 1.0

    def clock(self) -> float:
        return self.now

    def _lose(self, endpoint: Endpoint) -> None:
        self.lost.append((endpoint.name, self.now))

    async def step(self) -> None:
        """One look, with all the time that real sockets need, and none by the clock."""
        self.now += LOOK_SECONDS
        self.vigil.look()
        for _ in range(20):
            await asyncio.sleep(0)
        self.vigil.judge()

    async def steps(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            await self.step()

    async def answered(self, times: int = 1) -> None:
        """Until so many signs of life have come."""
        await self.step()
        await until(lambda: self.count("sign of life") >= times)

    def count(self, answer: str) -> float:
        return self.registry.get_sample_value("epp_signs_of_life_total", {"answer": answer}) or 0.0


@asynccontextmanager
async def watching(*workers: Worker, **settings: float) -> AsyncIterator[Watch]:
    for worker in workers:
        await worker.start()
    watch = Watch(*(worker.port for worker in workers), **settings)
    try:
        yield watch
    finally:
        await watch.vigil.stop()
        for worker in workers:
            await worker.kill()


async def test_a_worker_that_hangs_is_missed_within_the_bar():
    worker = Worker()
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK)
        await watch.answered()
        worker.hangs, died = True, watch.now
        await watch.steps(BAR_SECONDS)
        ((name, at),) = watch.lost
        assert name == "w0"
        assert at - died <= 0.8 * BAR_SECONDS
        await watch.steps(BAR_SECONDS)
        assert len(watch.lost) == 1, "it is told once, until it was heard of again"


async def test_a_node_that_is_gone_is_missed_within_the_bar():
    """Its packets come back no more: not on the kept connection, and no new one opens."""
    worker = Worker(close=True)
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK)
        await watch.answered()
        await worker.kill()
        with socket.socket() as full:  # whose backlog is full, so that the kernel answers no further connection
            full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            full.bind(("127.0.0.1", worker.port))
            full.listen(0)
            clogs = [socket.socket() for _ in range(4)]
            for clog in clogs:
                clog.setblocking(False)
                clog.connect_ex(full.getsockname())
            died = watch.now
            await watch.steps(BAR_SECONDS)
            for clog in clogs:
                clog.close()
        assert [name for name, _ in watch.lost] == ["w0"]
        assert watch.lost[0][1] - died <= 0.8 * BAR_SECONDS
        assert watch.count("silence") >= 1


async def test_a_killed_worker_is_missed_at_the_next_question():
    worker = Worker()
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK)
        await watch.answered()
        await worker.kill()
        died = watch.now
        await watch.steps(2 * SILENCE_SECONDS)
        await until(lambda: watch.count("no connection") >= 1)
        ((_, at),) = watch.lost
        assert at - died <= 2 * SILENCE_SECONDS


async def test_a_pick_of_a_worker_that_died_idle_is_missed_within_the_bar():
    worker = Worker()
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK).release()
        first = watch.load.reserve(0, WORK)
        await watch.answered()
        first.release()
        worker.hangs = True
        await watch.steps(5.0)
        assert watch.lost == [], "nobody waits for it"
        watch.load.reserve(0, WORK)
        picked = watch.now
        await watch.steps(BAR_SECONDS)
        assert watch.lost[0][1] - picked <= 0.6 * BAR_SECONDS


async def test_who_is_heard_of_is_not_asked():
    worker = Worker()
    async with watching(worker) as watch:
        streamed = watch.load.reserve(0, WORK)
        await watch.answered()
        streamed.first_token()
        for _ in range(20):
            streamed.progress(32)
            await watch.steps(SILENCE_SECONDS - LOOK_SECONDS)
        for _ in range(20):
            watch.metrics.note(0, EngineSample(running=1.0), watch.now)
            await watch.steps(SILENCE_SECONDS - LOOK_SECONDS)
        assert worker.questions == 1


async def test_a_busy_worker_may_be_silent_for_long_as_long_as_it_answers():
    worker = Worker()
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK)
        await watch.answered()
        await watch.steps(6.0)
        assert watch.lost == []
        assert worker.questions >= 10
        assert len(worker.transports) == 1, "the connection is kept"


@pytest.mark.parametrize(("word", "close"), [(b"", True), (b"\x15\x03\x01", True), (b"\x00\x00\x06\x04", False)])
async def test_any_reaction_is_a_sign_of_life(word: bytes, close: bool):
    worker = Worker(word=word, close=close)
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK)
        for times in range(1, 4):
            await watch.answered(times)
            await watch.steps(SILENCE_SECONDS)
        assert watch.lost == []


async def test_workers_that_never_answered_are_not_missed_and_seldom_asked():
    """Only the gateway may reach them, or nothing listens there."""
    nobody = Worker()
    async with watching(nobody) as watch:
        await nobody.kill()
        watch.load.reserve(0, WORK)
        await watch.steps(10.0)
        assert watch.lost == []
        assert 2 <= watch.count("no connection") <= 6
        await nobody.start()


async def test_one_that_came_back_is_missed_again():
    worker = Worker()
    async with watching(worker) as watch:
        watch.load.reserve(0, WORK)
        await watch.answered()
        worker.hangs = True
        await watch.steps(BAR_SECONDS)
        assert len(watch.lost) == 1
        worker.hangs = False
        await watch.steps(2.0)
        await until(lambda: watch.count("sign of life") >= 2)
        worker.hangs = True
        await watch.steps(BAR_SECONDS)
        assert len(watch.lost) == 2


async def test_questions_have_a_bound_and_the_longest_silence_comes_first():
    workers = [Worker() for _ in range(6)]
    async with watching(*workers, per_second=10.0) as watch:
        for column in range(6):
            watch.load.reserve(column, WORK)
        await watch.steps(2.0)
        questions = [worker.questions for worker in workers]
        assert 15 <= sum(questions) <= 21
        assert max(questions) - min(questions) <= 1


async def test_a_column_that_changes_hands_begins_anew():
    old, new = Worker(), Worker()
    async with watching(old) as watch:
        watch.load.reserve(0, WORK)
        await watch.answered()
        old.hangs = True
        await watch.steps(SILENCE_SECONDS + LOOK_SECONDS)  # a question is open
        await new.start()
        watch.pool.replace([Endpoint(name="new", address="127.0.0.1", port=new.port)])
        assert watch.pool.snapshot().columns.tolist() == [0]
        watch.load.reserve(0, WORK)
        await watch.answered(2)
        await watch.steps(BAR_SECONDS)
        assert watch.lost == []
        await new.kill()


async def test_a_thousand_quiet_looks_cost_little_and_ask_nobody():
    async with watching() as watch:
        watch.pool.replace(Endpoint(name=f"w{i}", address="10.0.0.1", port=1 + i) for i in range(1000))
        await watch.steps(1.0)
        assert np.count_nonzero(watch.load.in_flight) == 0
        assert watch.registry.get_sample_value("epp_signs_of_life_total", {"answer": "silence"}) is None
