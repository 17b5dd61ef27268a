"""A namespace with thousands of pods: lists come in pages, and the few that serve are found among all."""

import asyncio

import pytest

from epp.endpoints.kubernetes.client import KubernetesClient
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.followed import follow

PODS = 5000
AT_ONCE = 32


@pytest.mark.slow
async def test_five_thousand_pods(cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    turns = asyncio.Semaphore(AT_ONCE)

    async def idle(number: int) -> None:
        spec = {"containers": [{"name": "vllm", "image": "vllm", "ports": [{"containerPort": 8000}]}]}
        async with turns:
            metadata = {"name": f"p{number}", "labels": {"app": "vllm"}}
            await cluster.create(cluster.pods, {"metadata": metadata, "spec": spec})

    await asyncio.gather(*map(idle, range(PODS)))
    for i, number in enumerate((0, PODS // 2, PODS - 1)):
        await cluster.status(f"p{number}", f"10.0.0.{i}")
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.discovery.synced()
        await followed.until_places("10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.2:8000")
        await cluster.status("p7", "10.0.0.8")
        await cluster.delete(f"{cluster.pods}/p0")
        await followed.until_places("10.0.0.8:8000", "10.0.0.1:8000", "10.0.0.2:8000")
        assert not any(source.failures for source in followed.discovery.status().sources)
