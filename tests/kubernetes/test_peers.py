"""Replicas find each other by the EndpointSlices of their Service, in a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.watch import Timing
from epp.peers.slices import ServicePods
from tests.kubernetes.cluster import Cluster
from tests.waiting import until

TIMING = Timing(watch=5.0, watch_silence=20.0, longest_pause=0.5, absent_pause=0.5)


@asynccontextmanager
async def following(client: KubernetesClient, namespace: str) -> AsyncIterator[ServicePods]:
    pods = ServicePods(client, namespace, "epp", TIMING)
    task = asyncio.create_task(pods.run())
    try:
        yield pods
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def slice_of(name: str, service: str, *endpoints: dict, kind: str = "IPv4") -> dict:
    labels = {"kubernetes.io/service-name": service}
    ports = [{"name": "grpc", "port": 9002}]
    return {
        "metadata": {"name": name, "labels": labels},
        "addressType": kind,
        "endpoints": [*endpoints],
        "ports": ports,
    }


def pod(address: str, *, ready: bool = True, terminating: bool = False) -> dict:
    return {"addresses": [address], "conditions": {"ready": ready, "serving": ready, "terminating": terminating}}


async def test_all_pods_of_the_service_are_peers_while_they_start_and_drain_too(
    cluster: Cluster, client: KubernetesClient
):
    slices = cluster.path("discovery.k8s.io/v1", "endpointslices")
    leaving = pod("10.1.0.3", ready=False, terminating=True)
    await cluster.create(slices, slice_of("a", "epp", pod("10.1.0.1"), pod("10.1.0.2", ready=False), leaving))
    await cluster.create(slices, slice_of("x", "another", pod("10.1.0.9")))
    async with following(client, cluster.namespace) as pods:
        await until(lambda: pods.hosts() == {"10.1.0.1", "10.1.0.2", "10.1.0.3"}, said=pods.hosts)
        assert pods.source.listed

        await cluster.create(slices, slice_of("b", "epp", pod("fd00::4"), kind="IPv6"))
        await until(lambda: "fd00::4" in pods.hosts(), said=pods.hosts)
        await cluster.patch(f"{slices}/a", {"endpoints": [pod("10.1.0.1"), pod("10.1.0.5")]})
        await until(lambda: pods.hosts() == {"10.1.0.1", "10.1.0.5", "fd00::4"}, said=pods.hosts)
        await cluster.delete(f"{slices}/a")
        await cluster.delete(f"{slices}/b")
        await until(lambda: pods.hosts() == set(), said=pods.hosts)


async def test_the_service_may_come_later(cluster: Cluster, client: KubernetesClient):
    slices = cluster.path("discovery.k8s.io/v1", "endpointslices")
    async with following(client, cluster.namespace) as pods:
        await until(lambda: pods.source.listed)
        assert pods.hosts() == set()
        await cluster.create(slices, slice_of("a", "epp", pod("10.1.0.1")))
        await until(lambda: pods.hosts() == {"10.1.0.1"}, said=pods.hosts)
