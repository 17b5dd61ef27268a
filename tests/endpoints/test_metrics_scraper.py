"""Engines' metrics over real HTTP: fresh ones arrive, bad ones are told once, and none stops the others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.endpoints.metrics_client import PageConnection
from epp.endpoints.metrics_scraper import MetricsScraper, ScrapeRules
from epp.endpoints.pool import Pool
from tests.waiting import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RULES = ScrapeRules(least_seconds=0.02, most_seconds=0.1, timeout_seconds=0.3, cpu_budget=1.0)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Scraped:
    def __init__(self, ports: list[int], rules: ScrapeRules) -> None:
        self.pool = Pool()
        self.metrics = EngineMetrics(stale_seconds=5.0)
        self.pool.on_join(self.metrics.join)
        self.pool.on_leave(self.metrics.leave)
        self.pool.replace(
            Endpoint(name=f"w{i}", address="127.0.0.1", port=1 + i, metrics_port=port) for i, port in enumerate(ports)
        )
        self.scraper = MetricsScraper(self.pool, self.metrics, rules, CollectorRegistry())

    async def queued(self, column: int, wanted: float) -> None:
        async with asyncio.timeout(10):
            while True:
                sample = self.metrics.sample(column)
                if sample is not None and sample.queued == wanted:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def scraping(*ports: int, rules: ScrapeRules = RULES) -> AsyncIterator[Scraped]:
    scraped = Scraped(list(ports), rules)
    await scraped.scraper.start()
    try:
        yield scraped
    finally:
        await scraped.scraper.stop()


def page(queued: int, padding: int = 0) -> str:
    return "# HELP x y\n" * padding + f"vllm:num_requests_waiting 0{queued}\nvllm:num_requests_running 1\n"


async def test_readings_follow_the_engine_and_an_endpoint_that_left_is_forgotten():
    told = {"queued": 3}

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=page(told["queued"], padding=20_000))

    async with serving(answer) as port, scraping(port) as scraped:
        await scraped.queued(0, 3.0)
        told["queued"] = 7
        await scraped.queued(0, 7.0)
        assert scraped.scraper.status().stale == 0
        scraped.pool.replace([])
        assert scraped.metrics.sample(0) is None


async def test_a_chunked_answer_is_read():
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for line in page(4, padding=300).splitlines(keepends=True):
            await response.write(line.encode())
        return response

    async with serving(answer) as port, scraping(port) as scraped:
        await scraped.queued(0, 4.0)


async def test_bad_engines_are_told_once_and_do_not_stop_the_others():
    async def good(_request: web.Request) -> web.Response:
        return web.Response(text=page(1))

    async def hangs(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async def html(_request: web.Request) -> web.Response:
        return web.Response(text="<html>hello</html>")

    async def missing(_request: web.Request) -> web.Response:
        raise web.HTTPNotFound

    with capture_logs() as logs:
        async with (
            serving(good) as a,
            serving(hangs) as b,
            serving(html) as c,
            serving(missing) as d,
            scraping(a, b, c, d, 1) as scraped,
        ):
            await scraped.queued(0, 1.0)
            await asyncio.sleep(0.8)
            status = scraped.scraper.status()
    errors = {name: status.endpoints[name].error for name in ("w0", "w1", "w2", "w3", "w4")}
    assert errors["w0"] == ""
    assert errors["w1"] == "no answer in time"
    assert errors["w2"] == "the page holds none of the engine's metrics"
    assert errors["w3"] == "HTTP 404"
    assert errors["w4"].startswith("cannot connect")
    assert status.stale == 4
    warned = [log["endpoint"] for log in logs if log["event"] == "engine metrics cannot be read"]
    assert sorted(warned) == ["w1", "w2", "w3", "w4"]


async def test_an_engine_that_falls_silent_is_told_before_its_reading_fails():
    told = {"hangs": False}

    async def answer(_request: web.Request) -> web.Response:
        if told["hangs"]:
            await asyncio.sleep(60)
        return web.Response(text=page(1))

    lost: list[str] = []
    patient = replace(RULES, timeout_seconds=60.0)
    async with serving(answer) as port, scraping(port, rules=patient) as scraped:
        scraped.scraper.on_loss = lambda endpoint: lost.append(endpoint.name)
        await scraped.queued(0, 1.0)
        assert lost == []
        told["hangs"] = True
        await until(lambda: set(lost) == {"w0"}, 100.0)  # the usual time of a starved machine counts fourfold
        assert scraped.scraper.status().endpoints["w0"].error == ""


def test_stale_readings_are_unknown():
    metrics = EngineMetrics(stale_seconds=5.0)
    endpoint = Endpoint(name="w", address="10.0.0.1", port=1)
    metrics.join(1, endpoint)
    metrics.note(1, EngineSample(queued=2.0), now=10.0)
    columns = np.array([0, 1])
    assert metrics.view(columns, 15.0).queued[1] == 2.0
    assert np.isnan(metrics.view(columns, 15.1).queued).all()
    assert (metrics.stale(columns, 12.0), metrics.stale(columns, 16.0)) == (1, 2)


ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    "empty": b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
    "error": b"HTTP/1.1 503 Busy\r\ncontent-length:4\r\n\r\nwait",
}


@pytest.mark.parametrize("kind", sorted(ANSWERS))
async def test_an_answer_may_be_cut_anywhere(kind):
    answer = ANSWERS[kind]
    expected = {"length": (b"hello", ""), "chunks": (b"hello", ""), "empty": (b"", ""), "error": (None, "HTTP 503")}
    for cut in range(1, len(answer)):
        told: list[tuple[bytes | None, str]] = []
        connection = PageConnection("/metrics", "h", lambda page, error, told=told: told.append((page, error)))
        connection.connection_made(_Deaf())
        connection.ask()
        connection.data_received(answer[:cut])
        assert told == []
        connection.data_received(answer[cut:])
        assert told == [expected[kind]]


class _Deaf(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def test_readings_arrive_on_uvloop_too():
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_readings_follow_the_engine_and_an_endpoint_that_left_is_forgotten())
