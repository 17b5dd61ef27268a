"""Discovery against a real API server: what is picked follows what the cluster says."""

import pytest

from epp.endpoints.endpoint import Role
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.inference_pool import OLD_GROUP
from tests.kubernetes.cluster import Cluster, inference_pool
from tests.kubernetes.followed import follow


async def test_ready_pods_of_the_pool_are_endpoints(cluster: Cluster, client: KubernetesClient):
    await cluster.pool(ports=(8000, 8001))
    await cluster.pod("a", "10.0.0.1")
    await cluster.pod("b", "10.0.0.2", ready=False)
    await cluster.pod("c", "10.0.0.3", labels={"app": "other"})
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000", "10.0.0.1:8001")
        assert followed.discovery.waiting_for() == ()
        first, second = followed.pool.snapshot().endpoints
        assert (first.name, second.name, second.rank) == ("a-rank-0", "a-rank-1", 1)
        assert first.events_port == 5557
        assert second.events_port == 5558

        await cluster.status("b", "10.0.0.2")
        await followed.until_places("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001")
        await cluster.status("a", "10.0.0.1", ready=False)
        await followed.until_places("10.0.0.2:8000", "10.0.0.2:8001")
        await cluster.delete(f"{cluster.pods}/b", now=False)
        await followed.until_places()
        assert followed.discovery.waiting_for() == ()


async def test_a_restarted_container_is_another_incarnation(cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000")
        before = followed.pool.snapshot().endpoints[0]
        await cluster.status("a", "10.0.0.1", restarts=1)
        await followed.until(lambda: followed.pool.snapshot().endpoints[0].generation == 1)
        after = followed.pool.snapshot().endpoints[0]
        assert before.uid == after.uid
        assert before.incarnation != after.incarnation

        await cluster.delete(f"{cluster.pods}/a")
        await cluster.pod("a", "10.0.0.1")
        await followed.until(
            lambda: followed.places() != set() and followed.pool.snapshot().endpoints[0].uid != after.uid
        )


async def test_selector_and_ports_may_be_edited(cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1", labels={"app": "vllm", "track": "old"})
    await cluster.pod("b", "10.0.0.2", labels={"app": "vllm", "track": "new"})
    await cluster.pod("c", "10.0.0.3", labels={"app": "next"})
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        edit = {"spec": {"selector": {"matchLabels": {"track": "new"}}}}
        await cluster.patch(f"{cluster.pools}/pool", edit)
        await followed.until_places("10.0.0.2:8000")
        await cluster.patch(f"{cluster.pools}/pool", {"spec": {"targetPorts": [{"number": 9000}]}})
        await followed.until_places("10.0.0.2:9000")
        edit = {"spec": {"selector": {"matchLabels": {"app": "next", "track": None}}}}
        await cluster.patch(f"{cluster.pools}/pool", edit)
        await followed.until_places("10.0.0.3:9000")


async def test_a_relabelled_pod_leaves(cluster: Cluster, client: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000")
        await cluster.patch(f"{cluster.pods}/a", {"metadata": {"labels": {"app": "other"}}})
        await followed.until_places()
        await cluster.patch(f"{cluster.pods}/a", {"metadata": {"labels": {"app": "vllm", "llm-d.ai/role": "prefill"}}})
        await followed.until_places("10.0.0.1:8000")
        assert followed.pool.snapshot().endpoints[0].roles == {Role.PREFILL}
        await cluster.patch(f"{cluster.pods}/a", {"metadata": {"labels": {"llm-d.ai/role": "decode"}}})
        await followed.until(lambda: followed.pool.snapshot().endpoints[0].roles == {Role.DECODE})


async def test_a_pool_that_comes_goes_and_comes_again(cluster: Cluster, client: KubernetesClient):
    await cluster.pod("a", "10.0.0.1")
    async with follow(client, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until(lambda: "which does not exist" in str(followed.discovery.waiting_for()))
        await cluster.pool()
        await followed.until_places("10.0.0.1:8000")
        await cluster.delete(f"{cluster.pools}/pool")
        await followed.until_places()
        assert followed.discovery.waiting_for() == (f"InferencePool {cluster.namespace}/pool, which does not exist",)
        await cluster.pool(ports=(8001,))
        await followed.until_places("10.0.0.1:8001")


async def test_a_prefill_pool_beside_a_decode_pool(cluster: Cluster, client: KubernetesClient):
    await cluster.pool("decode", app="decode")
    await cluster.pool("prefill", app="prefill")
    await cluster.pod("d", "10.0.0.1", labels={"app": "decode"})
    await cluster.pod("p", "10.0.0.2", labels={"app": "prefill"})
    settings = {"pool_name": "decode", "prefill_pool_name": "prefill", "namespace": cluster.namespace}
    async with follow(client, **settings) as followed:
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        roles = {endpoint.name: endpoint.roles for endpoint in followed.pool.snapshot().endpoints}
        assert roles == {"d": {Role.DECODE}, "p": {Role.PREFILL}}


async def test_a_selector_needs_no_pool(cluster: Cluster, client: KubernetesClient):
    await cluster.pod("a", "10.0.0.1", labels={"app": "vllm", "tier": "gold"})
    await cluster.pod("b", "10.0.0.2")
    settings = {"pod_selector": "app=vllm,tier=gold", "target_ports": "8000", "namespace": cluster.namespace}
    async with follow(client, **settings) as followed:
        await followed.until_places("10.0.0.1:8000")


async def test_endpoint_slices_of_a_service(cluster: Cluster, client: KubernetesClient):
    slices = cluster.path("discovery.k8s.io/v1", "endpointslices")
    ready = {
        "addresses": ["10.0.0.1"],
        "conditions": {"ready": True},
        "targetRef": {"kind": "Pod", "name": "a", "uid": "u"},
    }
    await cluster.create(
        slices,
        {
            "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "vllm"}},
            "addressType": "IPv4",
            "endpoints": [ready, {"addresses": ["10.0.0.2"], "conditions": {"ready": False}}],
            "ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9090}],
        },
    )
    settings = {"service_name": "vllm", "target_ports": "http", "namespace": cluster.namespace}
    async with follow(client, **settings) as followed:
        await followed.until_places("10.0.0.1:8000")
        assert followed.pool.snapshot().endpoints[0].uid == "u"
        await cluster.patch(f"{slices}/s", {"endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": True}}]})
        await followed.until_places("10.0.0.2:8000")
        await cluster.delete(f"{slices}/s")
        await followed.until_places()


@pytest.mark.parametrize("group", [OLD_GROUP, None], ids=["asked for", "found"])
async def test_the_old_version_of_the_pool_is_understood(cluster: Cluster, client: KubernetesClient, group: str | None):
    """The cluster has the new version too: the pool is looked for in both."""
    await cluster.install(OLD_POOLS)
    await cluster.pod("a", "10.0.0.1")
    path = cluster.path("inference.networking.x-k8s.io/v1alpha2", "inferencepools")
    spec = {"selector": {"app": "vllm"}, "targetPortNumber": 8000, "extensionRef": {"name": "epp"}}
    kind = {"apiVersion": "inference.networking.x-k8s.io/v1alpha2", "kind": "InferencePool"}
    await cluster.create(path, kind | {"metadata": {"name": "old"}, "spec": spec})
    async with follow(client, pool_name="old", pool_group=group, namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000")


async def test_wrong_pools_are_refused_by_the_server_itself(cluster: Cluster):
    with pytest.raises(AssertionError, match="422"):
        await cluster.create(cluster.pools, inference_pool("pool", ports=(8000, 8000)))


OLD_POOLS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"inferencepools.{OLD_GROUP}",
        # The API server keeps this group for definitions that were reviewed.
        "annotations": {"api-approved.kubernetes.io": "unapproved, test only"},
    },
    "spec": {
        "group": OLD_GROUP,
        "scope": "Namespaced",
        "names": {"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool"},
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}
"""The shape of the group's last release, which the Inference Extension no longer ships."""
