"""SGLang's load channel, with the engine's own payload over real sockets."""

import asyncio
import json
import time
from pathlib import Path

import msgspec
import numpy as np
import zmq
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.endpoints.pool import Pool
from epp.scheduling.pushed_load import PushedLoad, load_ports
from tests.waiting import until

PAYLOADS = json.loads((Path(__file__).parents[1] / "data" / "kv_events" / "payloads.json").read_text())
CAPTURED = bytes.fromhex(next(each["hex"] for each in PAYLOADS if each["kind"] == "LoadStat"))
"""SGLang 0.5.23: 3 running, 2 waiting, 1,024 of 65,536 tokens, and six fields more."""
WORKER = Endpoint(name="w", address="127.0.0.1", port=8000, engine="sglang")


def stat(running: int, waiting: int, tokens: int = 0) -> bytes:
    return msgspec.msgpack.encode(["LoadStat", running, waiting, tokens, 1000])


class Engine:
    """PUB sockets as SGLang binds them, one for each rank, and its `/server_info`."""

    def __init__(self, ranks: int = 1) -> None:
        self.context = zmq.Context()
        self.sockets = [self.context.socket(zmq.PUB) for _ in range(ranks)]
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in self.sockets]
        self.asked = 0

    def say(self, payload: bytes, rank: int = 0) -> None:
        self.sockets[rank].send_multipart([b"load", bytes(8), payload])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"kv_events": {"load_endpoint_port_base": self.ports[0], "load_topic": "load"}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body)
        writer.close()

    def close(self) -> None:
        self.context.destroy(linger=0)


async def followed(engine: Engine, endpoint: Endpoint, **options: float) -> tuple[Pool, EngineMetrics, PushedLoad]:
    pool, metrics = Pool(), EngineMetrics(stale_seconds=60.0)
    pool.on_join(metrics.join)
    pool.on_leave(metrics.leave)
    pool.replace([endpoint])
    channel = PushedLoad(pool, metrics, time.monotonic, **options)
    await channel.start()
    return pool, metrics, channel


def seen(metrics: EngineMetrics) -> tuple[float, float, float]:
    view = metrics.view(np.array([0]), time.monotonic())
    return float(view.queued[0]), float(view.running[0]), float(view.kv_used[0])


async def test_what_the_engine_pushes_is_what_policies_see() -> None:
    engine = Engine()
    pool, metrics, channel = await followed(engine, worker(load_port=engine.ports[0]))
    try:

        def arrived() -> bool:
            engine.say(CAPTURED)
            return seen(metrics) == (2.0, 3.0, 1024 / 65536)

        await until(arrived)
        pool.replace([])
        engine.say(stat(9, 9))
        pool.replace([worker(load_port=None)])
        assert np.isnan(seen(metrics)).all()  # what was said of the one before is not believed of the next
    finally:
        await channel.stop()
        engine.close()


async def test_an_engine_is_asked_for_its_port() -> None:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = Endpoint(name="w", address="127.0.0.1", port=port, engine="sglang")
    _, metrics, channel = await followed(engine, endpoint, ask_seconds=20.0)
    try:

        def arrived() -> bool:
            engine.say(CAPTURED)
            return seen(metrics)[0] == 2.0

        await until(arrived)
        assert engine.asked == 1
    finally:
        await channel.stop()
        server.close()
        await server.wait_closed()
        engine.close()


async def test_ranks_behind_one_endpoint_are_summed_and_nonsense_is_skipped() -> None:
    first = Engine()
    # The second rank's port must follow the first's.
    while True:
        second = first.context.socket(zmq.PUB)
        try:
            second.bind(f"tcp://127.0.0.1:{first.ports[0] + 1}")
            break
        except zmq.ZMQError:
            second.close()
            first.close()
            first = Engine()
    first.sockets.append(second)
    _, metrics, channel = await followed(first, worker(load_port=first.ports[0], event_ranks=2))
    try:

        def arrived() -> bool:
            for nonsense in (b"", b"\xc1", msgspec.msgpack.encode(["LoadStat", -1, 0, 0, 0]), b"\x91" * 5000):
                first.say(nonsense, rank=0)
            first.say(stat(3, 1, tokens=100), rank=0)
            first.say(stat(2, 4, tokens=900), rank=1)
            return seen(metrics) == (5.0, 5.0, 0.9)

        await until(arrived)
    finally:
        await channel.stop()
        first.close()


def test_pushed_load_does_not_make_a_worker_look_stalled() -> None:
    """A page that was not read since tells nothing of its progress."""
    metrics = EngineMetrics(stale_seconds=6.0)
    metrics.join(0, WORKER)
    metrics.note(0, EngineSample(queued=1.0, progress=5.0), 100.0)
    for now in range(101, 160):
        metrics.note_load(0, queued=1.0, kv_used=None, now=float(now))
    assert metrics.stalled(np.array([0]), 30.0, 159.0) == []


def test_the_ports_of_an_engines_ranks() -> None:
    def said(**events: object) -> bytes:
        return json.dumps({"model_path": "m", "kv_events": {"endpoint_port_base": 5557} | events}).encode()

    assert load_ports(said(load_endpoint_port_base=6000, dp_size=2), WORKER, alone=True) == [6000, 6001]
    rank = Endpoint(name="w-rank-1", address="127.0.0.1", port=8001, rank=1, engine="sglang")
    assert load_ports(said(load_endpoint_port_base=6000, dp_size=2), rank, alone=False) == [6001]
    assert load_ports(said(load_endpoint_port_base=65535, dp_size=9), WORKER, alone=True) == [65535]
    assert load_ports(said(), WORKER, alone=True) == []
    assert load_ports(b'{"kv_events": null}', WORKER, alone=True) == []


@given(st.binary())
def test_whatever_an_engine_answers_is_no_fault(answer: bytes) -> None:
    assert load_ports(answer, WORKER, alone=True) == []


def worker(**more: object) -> Endpoint:
    return Endpoint(**{"name": "w", "address": "127.0.0.1", "port": 8000, "engine": "sglang"} | more)  # type: ignore[arg-type]
