"""The admin and metrics ports over real sockets, and `epp status` against them."""

import argparse
import asyncio
import json
from dataclasses import fields

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from epp.admin import command
from epp.admin.arguments import add_status_arguments
from epp.admin.metrics import MetricsServer
from epp.admin.server import AdminServer
from epp.admin.status import ProcessStatus, Status
from epp.endpoints.discovery import DiscoveryStatus
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineStatus, MetricsStatus
from epp.endpoints.pool import Pool
from epp.endpoints.source import Source
from epp.endpoints.status import pool_status
from epp.endpoints.suspects import SuspectsStatus
from epp.extproc.servicer import ExchangeStatus
from epp.kvcache.causes import Cause
from epp.kvcache.status import KvStatus, RankStatus
from epp.prompts.reader import PromptsStatus
from epp.scheduling.fidelity import FidelityStatus

SETTINGS = {"EPP_GRPC_PORT": "9002"}


class Process:
    """A running EPP as far as its status goes."""

    def __init__(self):
        self.pool = Pool()
        self.pool.replace([Endpoint(name="w0", address="10.0.0.1", port=8000)])
        self.ready = True
        self.source = Source("pods")
        self.engines = {}
        self.kv = KvStatus(enabled=False)
        self.fidelity = FidelityStatus()

    def status(self) -> Status:
        waiting = () if self.ready else ("the first list of pods",)
        process = ProcessStatus(version="1", uptime_seconds=2.5, ready=self.ready, waiting_for=waiting)
        return Status(
            process=process,
            discovery=DiscoveryStatus(sources=(self.source.status(),), waiting_for=waiting),
            pool=pool_status(self.pool),
            suspects=SuspectsStatus(suspended=()),
            exchanges=ExchangeStatus(open=1, begun=3, buffered_bytes=0, modes={}),
            prompts=PromptsStatus(models=()),
            settings=SETTINGS,
            engine_metrics=MetricsStatus(endpoints=self.engines),
            kv=self.kv,
            fidelity=self.fidelity,
        )


@pytest.fixture
async def served():
    process = Process()
    server = AdminServer(process.status, port=0)
    await server.start()
    yield process, f"http://127.0.0.1:{server.port}"
    await server.stop()


async def ask(url: str, *options: str) -> int:
    parser = argparse.ArgumentParser()
    add_status_arguments(parser)
    return await asyncio.to_thread(command.run, parser.parse_args(["--url", url, *options]))


async def test_status_is_one_json_document(served):
    _process, url = served
    async with aiohttp.ClientSession() as session, session.get(url + "/status") as answer:
        document = await answer.json()
    assert document["process"] == {"version": "1", "uptime_seconds": 2.5, "ready": True, "waiting_for": []}
    assert document["pool"]["endpoints"][0]["host_port"] == "10.0.0.1:8000"
    assert document["settings"] == SETTINGS


async def test_the_table_names_endpoints_and_settings(served, capsys):
    _process, url = served
    assert await ask(url) == 0
    out = capsys.readouterr().out
    assert "ready" in out
    assert "10.0.0.1:8000" in out
    assert "EPP_GRPC_PORT" in out


async def test_the_table_tells_who_gets_less(served, capsys, monkeypatch):
    process, url = served
    monkeypatch.setenv("COLUMNS", "250")
    process.pool.replace([Endpoint(name="w0", address="10.0.0.1", port=8000, weight=0.25)])
    assert await ask(url) == 0
    assert "fine, weight 0.25" in capsys.readouterr().out


async def test_the_table_tells_load_and_how_sure_the_cache_is(served, capsys, monkeypatch):
    process, url = served
    monkeypatch.setenv("COLUMNS", "250")
    process.engines = {
        "w0": EngineStatus(age_seconds=0.4, failures=0, error="", queued=2.0, running=5.0, kv_used=0.25),
    }
    process.kv = KvStatus(enabled=True, ranks=(known(blocks=77),))
    assert await ask(url) == 0
    out = capsys.readouterr().out
    assert "5 running, 2 queued, 25% of KV, 0.4 s ago" in out
    assert "77 blocks, 50% sure (no replay), last event 3.0 s ago" in out


def known(*, rank: int = 0, blocks: int) -> RankStatus:
    counts = {field.name: 0 for field in fields(RankStatus) if field.type is int or field.type == "int"}
    told = {"endpoint": "w0", "source": "", "confidence": 0.5, "why": "no replay", "idle_seconds": 3.0}
    more = {"sequence": None, "rank": rank, "blocks": blocks, "connected": True, "complete": False, "skipped": {}}
    return RankStatus(**{**counts, **told, **more})


async def test_the_table_tells_of_each_rank_and_why_predictions_are_wrong(served, capsys, monkeypatch):
    process, url = served
    monkeypatch.setenv("COLUMNS", "250")
    process.kv = KvStatus(enabled=True, ranks=(known(rank=0, blocks=77), known(rank=1, blocks=88)))
    process.fidelity = FidelityStatus(compared=30, mean_error={"w0": -48.0}, causes={"w0": Cause.TOKENIZER})
    assert await ask(url) == 0
    out = capsys.readouterr().out
    assert "rank 0: 77 blocks" in out
    assert "rank 1: 88 blocks" in out
    assert "predictions are -48 tokens off, likely other_tokenizer: " in out


async def test_an_epp_that_is_not_ready_is_a_no(served, capsys):
    process, url = served
    process.ready = False
    assert await ask(url) == 1
    assert "waiting for the first list of pods" in capsys.readouterr().out


async def test_json_is_the_document_itself(served, capfd):
    _process, url = served
    assert await ask(url, "--json") == 0
    assert json.loads(capfd.readouterr().out)["process"]["ready"] is True


async def test_nothing_there_is_told_without_a_traceback(capsys):
    assert await ask("http://127.0.0.1:1") == 3
    assert "is `epp serve` running?" in capsys.readouterr().err
    assert await ask("ftp://x") == 2
    assert await ask("http://127.0.0.1:port") == 2


async def test_a_foreign_server_is_no_epp(capsys):
    metrics = MetricsServer(CollectorRegistry(), host="127.0.0.1", port=0)
    await metrics.start()
    assert await ask(f"http://127.0.0.1:{metrics.port}") == 3
    assert "404" in capsys.readouterr().err
    await metrics.stop()


async def test_metrics_speak_the_format_that_the_scraper_asks_for():
    registry = CollectorRegistry()
    Counter("picks", "Picks made.", registry=registry).inc()
    server = MetricsServer(registry, host="127.0.0.1", port=0)
    await server.start()
    url = f"http://127.0.0.1:{server.port}/metrics"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert "picks_total 1.0" in await answer.text()
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
        async with session.get(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as answer:
            assert (await answer.text()).endswith("# EOF\n")
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    await server.stop()


async def test_a_port_in_use_is_an_error_at_the_start():
    first = MetricsServer(CollectorRegistry(), host="127.0.0.1", port=0)
    await first.start()
    second = MetricsServer(CollectorRegistry(), host="127.0.0.1", port=first.port)
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.stop()
    await first.stop()
