"""The doctor reads command lines, conditions and policies from a real API server."""

import json

import pytest

from epp.admin.doctor.cluster import pod_findings, policy_findings, pool_findings
from epp.admin.doctor.engine_flags import Expected
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.kubernetes.client import KubernetesClient
from tests.kubernetes.cluster import Cluster

OURS = Expected(block_size=16, events_port=5557, replay_port=None, kv_events=True)


@pytest.fixture
async def opened(client: KubernetesClient):
    await client.open()
    yield client
    await client.close()


def worker(name: str) -> Endpoint:
    return Endpoint(name=name, address="10.0.0.1", port=8000, events_port=5557, labels={"app": "vllm"})


async def test_the_command_line_of_a_pod(cluster: Cluster, opened: KubernetesClient):
    config = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://0.0.0.0:5557"})
    container = {"name": "main", "image": "vllm", "args": ["--model=m", "--kv-events-config", config]}
    await cluster.create(cluster.pods, {"metadata": {"name": "a"}, "spec": {"containers": [container]}})
    found = await pod_findings(opened, cluster.namespace, [worker("a")], OURS)
    assert [finding.what.split(",")[0] for finding in found] == [
        "endpoint tcp://0.0.0.0:5557 makes vLLM connect where it should bind",
        "it has no replay socket: an EPP that starts later does not learn what is cached already",
        "usage does not tell how many prompt tokens were cached",
    ]
    (gone,) = await pod_findings(opened, cluster.namespace, [worker("gone")], OURS)
    assert gone.severity == "unknown"
    assert "404" in gone.what


async def test_event_ports_without_a_network_policy(cluster: Cluster, opened: KubernetesClient):
    (found,) = await policy_findings(opened, cluster.namespace, [worker("a")])
    assert "any pod may listen to a" in found.what
    policies = cluster.path("networking.k8s.io/v1", "networkpolicies")
    spec = {"podSelector": {"matchLabels": {"app": "vllm"}}, "policyTypes": ["Ingress"]}
    await cluster.create(policies, {"metadata": {"name": "vllm"}, "spec": spec})
    assert await policy_findings(opened, cluster.namespace, [worker("a")]) == []


async def test_a_pool_that_no_gateway_took_up(cluster: Cluster, opened: KubernetesClient):
    await cluster.pool()
    (found,) = await pool_findings(opened, cluster.namespace, "pool")
    assert found.what == "no gateway has taken it up"
