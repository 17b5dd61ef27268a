"""Objectives and rewrites in a real API server, with and without their definitions."""

from epp.endpoints.kubernetes.client import KubernetesClient
from tests.kubernetes.build import CRDS
from tests.kubernetes.cluster import Cluster, load_crds
from tests.kubernetes.followed import follow

LLMD = "llm-d.ai"
OLD = "inference.networking.x-k8s.io"


async def test_policies_come_with_their_definitions_and_go_with_their_objects(
    cluster: Cluster, client: KubernetesClient, upstream_crds: list[dict]
):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    settings = {"pool_name": "pool", "namespace": cluster.namespace, "inference_policies": True}
    async with follow(client, kube_retry_seconds=0.05, **settings) as followed:
        await followed.until_places("10.0.0.1:8000")
        policies = followed.discovery.policies
        own = [crd for crd in load_crds(CRDS / "own") if crd["spec"]["group"] == LLMD]
        old = [
            crd for crd in upstream_crds if crd["kind"] == "CustomResourceDefinition" and crd["spec"]["group"] == OLD
        ]
        await cluster.install(*own, *old)
        for group, name, priority in ((LLMD, "high", 10), (OLD, "low", -1)):
            kind = {"apiVersion": f"{group}/v1alpha2", "kind": "InferenceObjective", "metadata": {"name": name}}
            spec = {"spec": {"poolRef": {"name": "pool"}, "priority": priority}}
            await cluster.create(cluster.path(f"{group}/v1alpha2", "inferenceobjectives"), kind | spec)
        await followed.until(lambda: policies.priorities == {"high": 10, "low": -1})

        rules = [{"matches": [{"model": {"value": "m"}}], "targets": [{"modelRewrite": "m-v2", "weight": 1}]}]
        kind = {"apiVersion": f"{LLMD}/v1alpha2", "kind": "InferenceModelRewrite", "metadata": {"name": "r"}}
        path = cluster.path(f"{LLMD}/v1alpha2", "inferencemodelrewrites")
        await cluster.create(path, kind | {"spec": {"poolRef": {"name": "pool"}, "rules": rules}})
        await followed.until(lambda: policies.rewrites.target("m", 0.5) == "m-v2")
        await cluster.delete(f"{path}/r")
        await followed.until(lambda: policies.rewrites.target("m", 0.5) is None)
        assert followed.discovery.waiting_for() == ()


async def test_absent_definitions_are_no_failure(cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    settings = {"pool_name": "pool", "namespace": cluster.namespace, "inference_policies": True}
    async with follow(client, **settings) as followed:
        await followed.discovery.synced()
        optional = followed.discovery.policies.sources
        await followed.until(lambda: all(source.listed or source.error for source in optional))
        assert {source.error for source in optional} <= {"", "not installed"}
        assert all(source.failures == 0 for source in optional)
