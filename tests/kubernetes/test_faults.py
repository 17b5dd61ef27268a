"""What can go wrong between the EPP and the API server, done for real: the last state serves, the next one arrives."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epp.endpoints.kubernetes.client import KubernetesClient
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.followed import Followed, follow
from tests.kubernetes.relay import Relay


@asynccontextmanager
async def through_relay(cluster: Cluster, tmp_path: Path, **settings: object) -> AsyncIterator[tuple[Followed, Relay]]:
    """A discovery that reaches the API server only through a relay."""
    relay = Relay(cluster.server.port)
    port = await relay.start()
    client = KubernetesClient(str(cluster.server.kubeconfig(tmp_path / "relayed", port=port)))
    try:
        async with follow(client, pool_name="pool", namespace=cluster.namespace, **settings) as followed:
            yield followed, relay
    finally:
        await relay.stop()


async def test_a_deletion_while_the_watch_is_cut_is_not_missed(cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    await cluster.pod("b", "10.0.0.2")
    async with through_relay(cluster, tmp_path) as (followed, relay):
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        relay.hold()
        relay.cut()
        await cluster.delete(f"{cluster.pods}/b")
        await cluster.pod("c", "10.0.0.3")
        assert followed.places() == {"10.0.0.1:8000", "10.0.0.2:8000"}
        relay.flow()
        await followed.until_places("10.0.0.1:8000", "10.0.0.3:8000")


async def test_a_half_open_connection_is_noticed_by_its_silence(cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with through_relay(cluster, tmp_path, kube_silence_seconds=1) as (followed, relay):
        await followed.until_places("10.0.0.1:8000")
        relay.hold()
        await cluster.pod("b", "10.0.0.2")
        await followed.until(lambda: all(source.failures for source in followed.discovery.status().sources))
        assert followed.places() == {"10.0.0.1:8000"}, "the last state serves"
        relay.flow()
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")


async def test_a_slow_api_server_only_delays_the_start(cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with through_relay(cluster, tmp_path) as (followed, relay):
        relay.delay = 0.2
        await followed.discovery.synced()
        await followed.until_places("10.0.0.1:8000")


async def test_many_reconnects_leak_no_descriptor(cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with through_relay(cluster, tmp_path, kube_retry_seconds=0.02) as (followed, relay):
        await followed.until_places("10.0.0.1:8000")
        await asyncio.sleep(0.2)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            seen = relay.connections
            relay.cut()
            await followed.until(lambda seen=seen: relay.connections > seen)
        await cluster.pod("b", "10.0.0.2")
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        await followed.until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4)


async def test_the_api_server_dies_and_comes_back(api_server: ApiServer, cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    await cluster.pod("b", "10.0.0.2")
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        api_server.stop("apiserver")
        await followed.until(lambda: all(source.error for source in followed.discovery.status().sources))
        assert followed.places() == {"10.0.0.1:8000", "10.0.0.2:8000"}, "the last state serves"
        api_server.spawn()
        await asyncio.to_thread(api_server.wait_ready)
        await cluster.delete(f"{cluster.pods}/b")
        await followed.until_places("10.0.0.1:8000")
        await followed.until(lambda: not any(source.error for source in followed.discovery.status().sources))


async def test_a_start_without_api_server_waits_for_it(api_server: ApiServer, cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    api_server.freeze("apiserver")
    async with through_relay(cluster, tmp_path) as (followed, relay):
        relay.cut()
        await asyncio.sleep(0.5)
        assert followed.places() == set()
        assert followed.discovery.waiting_for() == ("the first list from pool pool", "the first list from pods of pool")
        api_server.thaw("apiserver")
        await followed.until_places("10.0.0.1:8000")


async def test_history_that_is_gone_means_a_new_list(api_server: ApiServer, cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with through_relay(cluster, tmp_path, kube_watch_seconds=1) as (followed, _relay):
        for i in range(3):
            await followed.until_places("10.0.0.1:8000")
            await cluster.pod(f"b{i}", "10.0.0.2")
            await asyncio.to_thread(api_server.compact)
            await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
            await cluster.delete(f"{cluster.pods}/b{i}")
        await followed.until_places("10.0.0.1:8000")
        assert not any(source.failures for source in followed.discovery.status().sources)


async def test_a_terminating_pod_is_not_brought_back_by_a_resync(cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    await cluster.pod("b", "10.0.0.2")
    async with follow(client, pool_name="pool", namespace=cluster.namespace, kube_watch_seconds=1) as followed:
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        await cluster.delete(f"{cluster.pods}/a", now=False)
        await followed.until_places("10.0.0.2:8000")
        seen = []
        followed.pool.on_join(lambda column, endpoint: seen.append(endpoint.name))
        await cluster.patch(f"{cluster.pods}/a", {"metadata": {"labels": {"touched": "yes"}}})
        await asyncio.sleep(2.5)  # at least two new lists
        assert seen == []


@pytest.mark.parametrize("ready", [False, True])
async def test_readiness_is_one_event_away(cluster: Cluster, client: KubernetesClient, ready: bool):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1", ready=not ready)
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.discovery.synced()
        await cluster.status("a", "10.0.0.1", ready=ready)
        await followed.until_places(*(["10.0.0.1:8000"] if ready else []), seconds=5)
