"""`epp serve` and `epp status` as processes, with the pool in a real API server and the rights of our Role."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.simulate.processes import Picker, running_picker
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.test_rights import grant, token
from tests.waiting import until


def status(picker: Picker) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{picker.admin_port}/status", timeout=10) as answer:
        return json.load(answer)


async def until_places(picker: Picker, *places: str) -> dict:
    document: dict = {}

    async def there() -> bool:
        document.update(await asyncio.to_thread(status, picker))
        return {endpoint["host_port"] for endpoint in document["pool"]["endpoints"]} == set(places)

    await until(there, said=lambda: document["discovery"])
    return document


@asynccontextmanager
async def serving(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Picker]:
    """`epp serve` with the rights of our Role."""
    await grant(cluster)
    kubeconfig = cluster.server.kubeconfig(folder / "kubeconfig", token=await token(cluster))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = {
        "EPP_POOL_NAME": "pool",
        "EPP_NAMESPACE": cluster.namespace,
        "EPP_KUBE_RETRY_SECONDS": "0.5",
        "EPP_KV_EVENTS": "false",
        "EPP_ENGINE_METRICS": "false",
    }
    running = running_picker(settings, folder)
    picker = await asyncio.to_thread(running.__enter__)
    try:
        yield picker
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def test_serve_follows_the_cluster(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    await cluster.pool()
    await cluster.pod("a", "127.0.0.1")
    async with serving(cluster, tmp_path, monkeypatch) as picker:
        document = await until_places(picker, "127.0.0.1:8000")
        assert document["process"]["ready"] is True
        assert [source["name"] for source in document["discovery"]["sources"]] == ["pool pool", "pods of pool"]
        await cluster.pod("b", "127.0.0.2")
        await until_places(picker, "127.0.0.1:8000", "127.0.0.2:8000")
        await cluster.delete(f"{cluster.pods}/a")
        await until_places(picker, "127.0.0.2:8000")
        command = [sys.executable, "-m", "epp.cli", "status", "--url", f"http://127.0.0.1:{picker.admin_port}"]
        shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert "127.0.0.2:8000" in shown.stdout


async def test_serve_goes_on_when_the_api_server_is_lost(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await cluster.pool()
    await cluster.pod("a", "127.0.0.1")
    await cluster.pod("b", "127.0.0.2")
    async with serving(cluster, tmp_path, monkeypatch) as picker:
        await until_places(picker, "127.0.0.1:8000", "127.0.0.2:8000")
        cluster.server.stop("apiserver")
        try:
            await until(lambda: all_fail(picker))
            document = await until_places(picker, "127.0.0.1:8000", "127.0.0.2:8000")
            assert document["process"]["ready"] is True, "the last state serves"
            async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
                answer = await HealthStub(channel).Check(HealthCheckRequest(service="readiness"))
            assert answer.status == HealthCheckResponse.SERVING
        finally:
            cluster.server.spawn()
            await asyncio.to_thread(cluster.server.wait_ready)
        await cluster.delete(f"{cluster.pods}/a")
        await until_places(picker, "127.0.0.2:8000")


async def all_fail(picker: Picker) -> bool:
    sources = (await asyncio.to_thread(status, picker))["discovery"]["sources"]
    return all(source["error"] for source in sources)
