"""Engines say where they publish; what they say is never trusted further than for a port."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.inquiries import Inquiries
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.kvcache.source_discovery import discover, from_sglang, from_vllm, understood
from epp.kvcache.sources import Source
from tests.kvcache.publisher import Publisher, batch, stored
from tests.kvcache.test_knowledge import TOKENS, World
from tests.waiting import until

WORKER = Endpoint(name="w", address="10.0.0.7", port=8000)


def test_vllm_names_the_endpoints_of_its_ranks():
    said = {
        "1": {"publisher": "zmq", "endpoint": "tcp://10.0.0.7:40001", "replay_endpoint": "tcp://10.0.0.7:40003"},
        "0": {"publisher": "zmq", "endpoint": "tcp://evil.example:40000", "topic": "kv@", "buffer_steps": 10},
        "2": {"publisher": "zmq", "endpoint": "ipc:///tmp/x"},
        "3": {"publisher": "null", "endpoint": "tcp://*:5557"},
        "4": {"endpoint": "tcp://*:99999"},
    }
    assert from_vllm(WORKER, json.dumps(said).encode()) == [
        Source(0, "tcp://10.0.0.7:40000", None, "kv@"),
        Source(1, "tcp://10.0.0.7:40001", "tcp://10.0.0.7:40003", ""),
    ]
    assert from_vllm(WORKER, b"{}") == []


def test_sglang_names_base_ports():
    events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "block_size": 64}
    said = {"model_path": "m", "kv_events": events | {"dp_size": 2, "replay_endpoint_port_base": 6557}}
    assert from_sglang(WORKER, json.dumps(said).encode()) == [
        Source(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557", "", 64),
        Source(1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558", "", 64),
    ]
    assert from_sglang(WORKER, b'{"kv_events": null}') == []
    events |= {"dp_size": 10**9, "endpoint_port_base": 65534}
    assert len(from_sglang(WORKER, json.dumps({"kv_events": events}).encode())) == 2


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_wrong_answers_name_nothing(answer):
    for understand in (from_vllm, from_sglang):
        assert understood(understand, WORKER, answer) == []


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(documents: dict[str, object]) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        status = "200 OK" if path in documents else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\n\r\n{json.dumps(documents.get(path))}".encode())
        writer.close()

    return answer


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\xff" * 100)
    writer.close()


@pytest.mark.parametrize("answer", [silent, nonsense, answering({})])
async def test_engines_that_do_not_say_cost_a_bounded_time(answer):
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        worker = Endpoint(name="w", address="127.0.0.1", port=server.sockets[0].getsockname()[1])
        async with asyncio.timeout(20):
            assert await discover(worker, 0.5) == []
        await asyncio.sleep(0.2)  # the server's side of the connections ends


async def test_what_an_engine_says_is_followed(publisher: Publisher):
    publisher.publish(batch(stored([1, 2], TOKENS[:8])))
    said = {"0": {"endpoint": f"tcp://*:{publisher.port}", "replay_endpoint": f"tcp://*:{publisher.replay_port}"}}
    world = World()
    world.pool = Pool()
    world.knowledge = KvKnowledge(pool=world.pool, index=RunIndex(PrefixKeys()), discover_seconds=5.0)
    await world.knowledge.start()
    try:
        async with await asyncio.start_server(answering({"/kv_event_sources": said}), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            world.pool.replace([Endpoint(name="w", address="127.0.0.1", port=port)])
            await world.until_cached(8)
            await asyncio.sleep(0.2)
        assert world.knowledge.status().ranks[0].confidence == 1
    finally:
        await world.knowledge.stop()


class Inquired:
    """Two lives of an engine, each on event ports of its own, and a picker whose time is set by hand."""

    def __init__(self) -> None:
        self.documents: dict[str, object] = {}
        self.now = 0.0
        self.found: list[list[Source]] = []
        self.connected = True
        self.inquiries = Inquiries(5.0, lambda _column, _endpoint, sources: self.found.append(sources))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.inquiries.tick(self.now, lambda _column: self.connected)

    def says(self, port: int) -> None:
        self.documents["/kv_event_sources"] = {"0": {"endpoint": f"tcp://*:{port}"}}


async def test_an_engine_that_does_not_say_yet_or_publishes_elsewhere_later_is_asked_again():
    world = Inquired()
    async with await asyncio.start_server(answering(world.documents), "127.0.0.1", 0) as server:
        worker = Endpoint(name="w", address="127.0.0.1", port=server.sockets[0].getsockname()[1])
        world.inquiries.begin(3, worker)
        await until(lambda: not world.inquiries.asking)
        assert world.found == []
        world.says(5001)  # it is up now
        world.tick(1)
        world.tick(4)
        assert not world.inquiries.asking
        world.tick(1)
        await until(lambda: len(world.found) == 1)
        world.says(5002)  # and restarted
        await until(lambda: not world.inquiries.asking)
        world.tick(100)
        world.tick(100)
        assert not world.inquiries.asking  # its streams stand: there is nothing to ask
        world.connected = False
        world.tick(1)
        world.tick(5)
        await until(lambda: len(world.found) == 2)
        await until(lambda: not world.inquiries.asking)
        for _ in range(3):  # still the same: nothing new to tell
            world.tick(300)
            await until(lambda: not world.inquiries.asking)
        world.inquiries.end(3)
        world.tick(10_000)
        assert not world.inquiries.asking
        await asyncio.sleep(0.2)  # the server's side of the connections ends
    assert [[source.events for source in sources] for sources in world.found] == [
        ["tcp://127.0.0.1:5001"],
        ["tcp://127.0.0.1:5002"],
    ]
