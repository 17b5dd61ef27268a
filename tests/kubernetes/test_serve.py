"""`epp serve` and `epp status` as processes, with the pool in a real API server and the rights of our Role."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

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


async def test_serve_follows_the_cluster(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    await grant(cluster)
    await cluster.pool()
    await cluster.pod("a", "127.0.0.1")
    kubeconfig = cluster.server.kubeconfig(tmp_path / "kubeconfig", token=await token(cluster))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = {
        "EPP_POOL_NAME": "pool",
        "EPP_NAMESPACE": cluster.namespace,
        "EPP_KV_EVENTS": "false",
        "EPP_ENGINE_METRICS": "false",
    }
    running = running_picker(settings, tmp_path)
    picker = await asyncio.to_thread(running.__enter__)
    try:
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
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
