"""Which source is chosen, and how a file or list becomes the pool."""

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from epp.endpoints.discovery import Discovery
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.kubernetes.client import NoClusterError
from epp.endpoints.membership import Membership
from epp.endpoints.pool import Pool
from epp.endpoints.static_feed import StaticFeed
from epp.settings import EndpointsSettings, SettingsError
from tests.waiting import until


def discovery(pool: Pool, **settings: object) -> Discovery:
    return Discovery(EndpointsSettings.model_validate(settings), pool, CollectorRegistry())


@asynccontextmanager
async def running(**settings: object):
    pool = Pool()
    found = discovery(pool, **settings)
    await found.start()
    yield pool, found
    await found.stop()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of EPP_POOL_NAME, .*; none is set"),
        ({"pool_name": "p", "endpoints": "1.2.3.4:1"}, "EPP_POOL_NAME and EPP_ENDPOINTS are set"),
        ({"prefill_pool_name": "p", "endpoints": "1.2.3.4:1"}, "EPP_PREFILL_POOL_NAME: expected EPP_POOL_NAME"),
        ({"pool_name": "p", "pool_group": "x"}, "EPP_POOL_GROUP='x': expected one of inference.networking.k8s.io"),
        ({"pod_selector": "app", "target_ports": "1"}, "EPP_POD_SELECTOR='app': expected label=value"),
        ({"pod_selector": "app==x", "target_ports": "1"}, "EPP_POD_SELECTOR='app==x': expected label=value"),
        ({"pod_selector": "app=x"}, "EPP_TARGET_PORTS='': expected 1 to 8 different ports"),
        ({"pod_selector": "app=x", "target_ports": "1,1"}, "EPP_TARGET_PORTS='1,1': expected"),
        ({"pod_selector": "app=x", "target_ports": "1,70000"}, "EPP_TARGET_PORTS='1,70000': expected"),
        ({"endpoints": "worker:8000"}, "EPP_ENDPOINTS: expected ip:port, .* not 'worker:8000'"),
        ({"endpoints": "fd00::1:8000"}, "EPP_ENDPOINTS: expected ip:port"),
        ({"endpoints": "10.0.0.1"}, "EPP_ENDPOINTS: expected ip:port"),
        ({"endpoints": "10.0.0.1:1,10.0.0.1:1"}, "10.0.0.1:1 is given twice"),
        ({"endpoints_file": "/nowhere.yaml"}, "/nowhere.yaml: cannot be read"),
    ],
)
async def test_settings_that_name_no_usable_source(settings, message):
    with pytest.raises(SettingsError, match=message):
        discovery(Pool(), **settings)


async def test_a_static_list_is_the_pool_at_once():
    async with running(endpoints="10.0.0.1:8000, [fd00::1]:8001") as (pool, found):
        assert set(pool.snapshot().position) == {"10.0.0.1:8000", "[fd00::1]:8001"}
        assert found.waiting_for() == ()


async def test_no_cluster_anywhere_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(NoClusterError, match="no Kubernetes API server is known"):
        await discovery(Pool(), pool_name="p").start()


def write(path: Path, *ports: int) -> None:
    text = "".join(f"- {{name: w{port}, address: 10.0.0.1, ports: [{port}]}}\n" for port in ports)
    path.write_text("endpoints:\n" + (text or "  []"))


async def test_a_changed_file_is_read_again_and_a_wrong_one_keeps_the_last_state(tmp_path):
    path = tmp_path / "endpoints.yaml"
    write(path, 1, 2)
    async with running(endpoints_file=path, endpoints_file_seconds=0.01) as (pool, found):
        assert set(pool.snapshot().position) == {"10.0.0.1:1", "10.0.0.1:2"}
        column = int(pool.snapshot().columns[pool.snapshot().position["10.0.0.1:2"]])
        write(path, 2, 3, 4)
        await until(lambda: set(pool.snapshot().position) == {"10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4"})
        assert pool.snapshot().columns[pool.snapshot().position["10.0.0.1:2"]] == column

        path.write_text("endpoints: [{name: w, address: nowhere, ports: [1]}]")
        await until(lambda: found.status().sources[0].failures == 1)
        assert "endpoints[0].address" in found.status().sources[0].error
        assert len(pool.snapshot().endpoints) == 3
        path.unlink()
        await until(lambda: "cannot be read" in found.status().sources[0].error)
        assert len(pool.snapshot().endpoints) == 3
        write(path, 5)
        await until(lambda: set(pool.snapshot().position) == {"10.0.0.1:5"})
        assert found.status().sources[0].error == ""


async def test_a_mounted_config_map_changes_by_its_link(tmp_path):
    for version, port in (("v1", 1), ("v2", 2)):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "endpoints.yaml", port)
        os.utime(tmp_path / version / "endpoints.yaml", (0, 0))
    (tmp_path / "data").symlink_to("v1")
    async with running(endpoints_file=tmp_path / "data" / "endpoints.yaml", endpoints_file_seconds=0.01) as (pool, _):
        (tmp_path / "new").symlink_to("v2")
        (tmp_path / "new").rename(tmp_path / "data")
        await until(lambda: set(pool.snapshot().position) == {"10.0.0.1:2"})


async def test_changes_of_one_turn_are_one_change_of_the_pool():
    pool = Pool()
    membership = Membership(pool, most=10)
    endpoints = [Endpoint(name=f"w{i}", address="10.0.0.1", port=i) for i in range(1, 6)]
    membership.add_source(StaticFeed(tuple(endpoints)))
    before = pool.snapshot().version
    for _ in range(100):
        membership.changed()
    await asyncio.sleep(0)
    assert pool.snapshot().version == before + 1
    assert len(pool.snapshot().endpoints) == 5


async def test_endpoints_beyond_the_bound_are_left_out():
    pool = Pool()
    membership = Membership(pool, most=3)
    endpoints = tuple(Endpoint(name=f"w{i}", address="10.0.0.1", port=i) for i in range(1, 6))
    membership.add_source(StaticFeed(endpoints))
    membership.apply()
    assert [endpoint.name for endpoint in pool.snapshot().endpoints] == ["w1", "w2", "w3"]
