"""A worker that stops answering is out of the picks long before the cluster notices."""

import asyncio
import socket
import time
from contextlib import suppress

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.endpoints.suspects import Suspects, answers
from tests.waiting import until


class Worker:
    """A TCP listener on loopback that can die and come back."""

    def __init__(self, port: int = 0) -> None:
        self.server: asyncio.Server | None = None
        self.port = port

    async def start(self) -> "Worker":
        self.server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def die(self) -> None:
        self.server.close()
        await self.server.wait_closed()


def endpoint(port: int, name: str = "w", address: str = "127.0.0.1", **more: object) -> Endpoint:
    return Endpoint(name=name, address=address, port=port, **more)


@pytest.fixture
async def pool() -> Pool:
    return Pool()


@pytest.fixture
async def suspects(pool: Pool):
    made = Suspects(pool, CollectorRegistry())
    yield made
    await made.stop()


async def test_a_dead_worker_is_out_from_the_first_failure_until_it_answers(pool: Pool, suspects: Suspects):
    worker = await Worker().start()
    dead = endpoint(worker.port)
    pool.replace([dead])
    await worker.die()
    suspects.suspect(dead)
    assert suspects.places == {dead.host_port}, "at once, before any probe"
    await asyncio.sleep(0.1)
    assert suspects.places == {dead.host_port}
    worker = await Worker(worker.port).start()
    await until(lambda: not suspects.places)
    await worker.die()


async def test_a_worker_that_lives_comes_straight_back(pool: Pool, suspects: Suspects):
    worker = await Worker().start()
    pool.replace([endpoint(worker.port)])
    suspects.suspect(endpoint(worker.port))
    await until(lambda: not suspects.places)
    await worker.die()


async def test_a_black_hole_is_dead_too(pool: Pool, suspects: Suspects):
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        clogs = []
        for _ in range(4):  # fill the backlog, so that further connections get no answer
            clog = socket.socket()
            clog.setblocking(False)
            clog.connect_ex(full.getsockname())
            clogs.append(clog)
        hole = endpoint(full.getsockname()[1])
        started = time.monotonic()
        assert not await answers(hole)
        assert time.monotonic() - started < 5
        for clog in clogs:
            clog.close()


@pytest.mark.parametrize(("word", "alive"), [(b"", False), (b"\x15", True)])
async def test_who_accepts_and_stays_silent_is_dead_and_any_word_is_life(word: bytes, alive: bool):
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(word)
            await reader.read()
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert await answers(endpoint(server.sockets[0].getsockname()[1])) is alive
        await over.wait()


async def test_who_speaks_only_http2_lives():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert await answers(endpoint(port))
    await server.stop(None)


async def test_who_closes_as_it_dies_is_dead():
    """The sockets of a killed process close one after the other: the last probe may still be accepted."""

    def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    assert not await answers(endpoint(server.sockets[0].getsockname()[1]))
    await server.wait_closed()


async def test_who_left_the_pool_is_forgotten_and_a_new_incarnation_starts_clean(pool: Pool, suspects: Suspects):
    old = endpoint(1, uid="old")
    pool.replace([old])
    suspects.suspect(old)
    new = endpoint(1, uid="new")
    pool.replace([new])
    assert suspects.places == frozenset()
    suspects.suspect(old)
    assert suspects.places == frozenset(), "the failure of a former incarnation says nothing of this one"
    suspects.suspect(new)
    await asyncio.sleep(0.05)
    assert suspects.places == {new.host_port}


async def test_probes_that_reach_nobody_say_nothing(pool: Pool):
    async def blind(_endpoint: Endpoint) -> bool:
        return False

    registry = CollectorRegistry()
    suspects = Suspects(pool, registry, probe=blind)
    one, other = endpoint(1, "one", "10.0.0.1"), endpoint(1, "other", "10.0.0.2")
    pool.replace([one, other])
    suspects.answered(other)
    suspects.suspect(one)
    await until(lambda: registry.get_sample_value("epp_suspicions_total", {"verdict": "unknown"}) == 1)
    assert registry.get_sample_value("epp_suspicions_total", {"verdict": "dead"}) is None
    await suspects.stop()


async def test_stopping_ends_all_probes(pool: Pool, suspects: Suspects):
    pool.replace([endpoint(1)])
    suspects.suspect(endpoint(1))
    await suspects.stop()
    assert suspects.places == frozenset()
