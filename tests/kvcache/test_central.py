"""Engines that connect to us, on real sockets: who is who by the topic, and what is missed."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import numpy as np
import pytest

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.central import Bind, identity
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.kvcache.stream import StreamOptions
from epp.prompts.prompt import Prompt
from tests.kvcache.publisher import Publisher, batch, stored

TOKENS = list(range(40))
Connect = Callable[..., Publisher]
Pooled = Callable[..., Awaitable[KvKnowledge]]


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
        try:
            for i in range(count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port + i))
        except (OSError, OverflowError):
            continue
        return port


@pytest.fixture
def port() -> int:
    return free_ports(2)


@pytest.fixture
def connect(port: int) -> Iterator[Connect]:
    engines: list[Publisher] = []

    def start(topic: str, rank: int = 0) -> Publisher:
        engines.append(Publisher(connect=port + rank, topic=topic.encode()))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
async def pooled(port: int) -> AsyncIterator[Pooled]:
    pool = Pool()
    options = StreamOptions(replay_idle_seconds=1.0)
    knowledge = KvKnowledge(
        pool=pool, index=RunIndex(PrefixKeys()), options=options, bind=Bind("127.0.0.1", port, ranks=2)
    )

    async def start(*endpoints: Endpoint) -> KvKnowledge:
        pool.replace(endpoints)
        await knowledge.start()
        return knowledge

    yield start
    await knowledge.stop()


def endpoint(number: int, replay: int | None = None, *, rank: int = 0, event_ranks: int = 1) -> Endpoint:
    place = f"127.0.0.{number + 1}"
    return Endpoint(name=f"w{number}", address=place, port=8000, replay_port=replay, rank=rank, event_ranks=event_ranks)


def cached(knowledge: KvKnowledge) -> list[int]:
    return knowledge.match(Prompt(tokens=np.array([*TOKENS, 1], dtype=np.uint32))).cached_tokens.tolist()


async def until(condition: Callable[[], bool], work: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(20):
        while not condition():
            work()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        (b"kv@pod-1@model", "pod-1"),
        (b"kv@10.0.0.1:8000@org/model@v2", "10.0.0.1:8000"),
        (b"pod-1", "pod-1"),
        (b"kv", "kv"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_name_in_a_topic(topic: bytes, name: str) -> None:
    assert identity(topic) == name


@pytest.mark.parametrize("names", [("kv@w0@m", "kv@w1@m"), ("127.0.0.1", "127.0.0.2"), ("127.0.0.1:8000", "w1")])
async def test_each_engine_is_known_by_the_name_in_its_topic(
    connect: Connect, pooled: Pooled, names: tuple[str, str]
) -> None:
    knowledge = await pooled(endpoint(0), endpoint(1))
    engines = [connect(name) for name in names]

    def publish() -> None:  # what comes before the connection stands is lost, so say more
        for held, engine in zip((4, 8), engines, strict=True):
            engine.publish(batch(stored(list(range(1, held // 4 + 1)), TOKENS[:held])))

    await until(lambda: cached(knowledge) == [4, 8], publish)
    status = knowledge.status()
    assert [rank.connected for rank in status.ranks] == [True, True]
    assert status.unknown_publishers == 0


async def test_what_was_said_before_the_connection_stood_is_replayed_and_so_is_a_gap(
    connect: Connect, pooled: Pooled
) -> None:
    engine = connect("w0")
    engine.publish(batch(stored([1], TOKENS[:4])), lose=True)
    knowledge = await pooled(endpoint(0, engine.replay_port))
    numbers = iter(range(100, 10_000))
    await until(lambda: cached(knowledge) == [4], lambda: engine.publish(batch(stored([next(numbers)], [7] * 4))))
    engine.publish(batch(stored([2], TOKENS[4:8], parent=1)), lose=True)
    engine.publish(batch(stored([3], TOKENS[8:12], parent=2)))
    await until(lambda: cached(knowledge) == [12])
    assert knowledge.status().ranks[0].confidence == 1.0


async def test_a_restarted_engine_begins_empty_and_others_stay(connect: Connect, pooled: Pooled) -> None:
    knowledge = await pooled(endpoint(0), endpoint(1))
    first, other = connect("w0"), connect("w1")

    def publish() -> None:
        for engine in (first, other):
            engine.publish(batch(stored([1], TOKENS[:4])))

    await until(lambda: cached(knowledge) == [4, 4], publish)
    for _ in range(1000):  # whichever of the new engine's batches comes first, its number goes back
        publish()
    await until(lambda: all((rank.sequence or 0) >= 1000 for rank in knowledge.status().ranks))
    again = connect("w0")
    await until(lambda: cached(knowledge) == [0, 4], lambda: again.publish(batch(stored([9], [7] * 4))))
    assert [rank.restarts for rank in knowledge.status().ranks] == [1, 0]


async def test_ranks_have_ports_of_their_own(connect: Connect, pooled: Pooled) -> None:
    knowledge = await pooled(endpoint(0, event_ranks=2))
    engines = [connect("w0", rank) for rank in range(2)]

    def publish() -> None:
        for held, engine in zip((4, 8), engines, strict=True):
            engine.publish(batch(stored(list(range(1, held // 4 + 1)), TOKENS[:held])))

    await until(lambda: [rank.blocks for rank in knowledge.status().ranks] == [1, 2], publish)
    assert cached(knowledge) == [8]


async def test_a_topic_without_an_endpoint_of_its_own_changes_nothing(connect: Connect, pooled: Pooled) -> None:
    twins = [Endpoint(name=f"w{i}", address="127.0.0.1", port=8000 + i) for i in range(2)]
    knowledge = await pooled(*twins)
    engines = [connect(topic) for topic in ("w7", "", "kv@127.0.0.1@m")]

    def publish() -> None:
        for engine in engines:
            engine.publish(batch(stored([1], TOKENS[:4])))

    await until(lambda: knowledge.status().unknown_publishers >= 10, publish)
    assert [rank.messages for rank in knowledge.status().ranks] == [0, 0]
    assert cached(knowledge) in ([], [0, 0])


async def test_an_endpoint_that_leaves_is_unknown_from_then_on(connect: Connect, pooled: Pooled) -> None:
    knowledge = await pooled(endpoint(0))
    engine = connect("w0")
    await until(lambda: cached(knowledge) == [4], lambda: engine.publish(batch(stored([1], TOKENS[:4]))))
    knowledge._pool.replace([])
    await until(
        lambda: knowledge.status().unknown_publishers > 0, lambda: engine.publish(batch(stored([1], TOKENS[:4])))
    )
    assert knowledge.status().ranks == ()


async def test_a_port_that_is_taken_is_an_error_that_names_it(port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        knowledge = KvKnowledge(pool=Pool(), index=RunIndex(PrefixKeys()), bind=Bind("127.0.0.1", port, ranks=2))
        with pytest.raises(OSError, match=str(port + 1)):
            await knowledge.start()
        await knowledge.stop()
