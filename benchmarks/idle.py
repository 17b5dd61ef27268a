"""CPU of reading the metrics of 100 idle endpoints; baseline: the same pages through prometheus_client's parser."""

import asyncio
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.report import report
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics
from epp.endpoints.metrics_page import read_page
from epp.endpoints.metrics_scraper import MetricsScraper, ScrapeRules
from epp.endpoints.pool import Pool

ENDPOINTS = 100
SECONDS = 20.0


def page() -> str:
    """As large as vLLM's, 84 KB: mostly histograms."""
    lines = [f'vllm:latency_bucket{{engine="0",le="{i}",model_name="m",kind="{i % 7}"}} {i}.0' for i in range(1500)]
    lines.insert(20, 'vllm:num_requests_running{engine="0",model_name="m"} 0.0')
    lines.insert(21, 'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0')
    lines.insert(900, 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25')
    return "\n".join(lines) + "\n"


def serve(told: Connection) -> None:
    async def run() -> None:
        async def answer(_request: web.Request) -> web.Response:
            return web.Response(body=body, content_type="text/plain")

        body = page().encode()
        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        told.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def measure(port: int) -> tuple[float, float]:
    """Share of a core, and age of the oldest reading in seconds."""
    pool, metrics = Pool(), EngineMetrics(6.0)
    pool.on_join(metrics.join)
    pool.replace(Endpoint(name=f"w{i}", address="127.0.0.1", port=i + 1, metrics_port=port) for i in range(ENDPOINTS))
    pool.on_leave(metrics.leave)
    scraper = MetricsScraper(pool, metrics, ScrapeRules(), CollectorRegistry())
    await scraper.start()
    await asyncio.sleep(10.0)
    begun, cpu, oldest = time.monotonic(), time.process_time(), 0.0
    while time.monotonic() - begun < SECONDS:
        await asyncio.sleep(0.5)
        ages = [metrics.status(column, time.monotonic()).age_seconds for column in range(ENDPOINTS)]
        oldest = max(oldest, *(age if age is not None else 99.0 for age in ages))
    share = (time.process_time() - cpu) / (time.monotonic() - begun)
    await scraper.stop()
    return share, oldest


def parse_cost() -> tuple[float, float]:
    """Seconds per page: ours, and prometheus_client's."""
    text = page()
    begun = time.perf_counter()
    for _ in range(200):
        read_page(text.encode(), "vllm")
    ours = (time.perf_counter() - begun) / 200
    begun = time.perf_counter()
    for _ in range(5):
        list(text_string_to_metric_families(text))
    return ours, (time.perf_counter() - begun) / 5


def main() -> None:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `epp serve` does
            share, oldest = runner.run(measure(here.recv()))
    finally:
        server.terminate()
    ours, theirs = parse_cost()
    baseline = share + (theirs - ours) * ENDPOINTS / ScrapeRules().most_seconds
    print(f"oldest reading: {oldest:.2f} s", file=sys.stderr)
    report("idle_100", share, "share of a core", baseline=baseline)


if __name__ == "__main__":
    main()
