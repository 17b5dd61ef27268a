"""The Role that we ship is enough, and gives no more than it says."""

import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
import yaml

from epp.endpoints.kubernetes.client import ApiError, KubernetesClient
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.followed import follow

RBAC = Path(__file__).parents[2] / "manifests" / "base" / "rbac.yaml"


async def grant(cluster: Cluster) -> None:
    """Apply the base's ServiceAccount, Role and RoleBinding."""
    rbac = cluster.path("rbac.authorization.k8s.io/v1", "")
    places = {"ServiceAccount": f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"}
    for document in yaml.safe_load_all(RBAC.read_text()):
        for subject in document.get("subjects", ()):
            subject["namespace"] = cluster.namespace
        await cluster.create(places.get(document["kind"], f"{rbac}{document['kind'].lower()}s"), document)


async def token(cluster: Cluster, account: str = "epp") -> str:
    """A token as the kubelet mounts it into the pod."""
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return (await cluster.create(path, request))["status"]["token"]


@pytest.fixture
async def limited(cluster: Cluster, tmp_path: Path) -> KubernetesClient:
    await grant(cluster)
    return KubernetesClient(str(cluster.server.kubeconfig(tmp_path / "limited", token=await token(cluster))))


async def test_the_role_suffices(cluster: Cluster, limited: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with follow(limited, pool_name="pool", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000")
        await cluster.pod("b", "10.0.0.2")
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        assert not any(source.failures for source in followed.discovery.status().sources)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/namespaces/{namespace}/secrets"),
        ("GET", "/api/v1/namespaces/{namespace}/configmaps"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/default/pods"),
        ("GET", "/api/v1/nodes"),
        ("POST", "/api/v1/namespaces/{namespace}/pods"),
        ("DELETE", "/api/v1/namespaces/{namespace}/pods/a"),
        ("PATCH", "/api/v1/namespaces/{namespace}/pods/a/status"),
        ("PATCH", "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools/pool/status"),
        ("PUT", "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools/pool"),
    ],
)
async def test_the_role_gives_no_more(cluster: Cluster, method: str, path: str):
    await grant(cluster)
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    headers = {"Authorization": f"Bearer {await token(cluster)}", "Content-Type": "application/merge-patch+json"}
    context = ssl.create_default_context(cafile=str(cluster.server.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True)) as session:
        url = cluster.server.url + path.format(namespace=cluster.namespace)
        async with session.request(method, url, headers=headers, data="{}") as answer:
            assert answer.status == 403, await answer.text()


async def allow(cluster: Cluster, *rules: dict) -> None:
    """Only these rights."""
    role = cluster.path("rbac.authorization.k8s.io/v1", "roles/epp")
    await cluster.patch(role, {"rules": [rule | {"verbs": ["get", "list", "watch"]} for rule in rules]})


async def test_a_service_needs_only_its_endpoint_slices(cluster: Cluster, limited: KubernetesClient):
    """The Role of manifests/components/service."""
    await allow(cluster, {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]})
    piece = {
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8000}],
    }
    await cluster.create(cluster.path("discovery.k8s.io/v1", "endpointslices"), piece)
    async with follow(limited, service_name="vllm", namespace=cluster.namespace) as followed:
        await followed.until_places("10.0.0.1:8000")
        assert not any(source.failures for source in followed.discovery.status().sources)


async def test_a_selector_needs_only_pods(cluster: Cluster, limited: KubernetesClient):
    await allow(cluster, {"apiGroups": [""], "resources": ["pods"]})
    await cluster.pod("a", "10.0.0.1")
    settings = {"pod_selector": "app=vllm", "target_ports": "8000", "namespace": cluster.namespace}
    async with follow(limited, **settings) as followed:
        await followed.until_places("10.0.0.1:8000")
        assert not any(source.failures for source in followed.discovery.status().sources)


async def test_a_missing_right_is_told_and_mended_without_restart(cluster: Cluster, limited: KubernetesClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    role = cluster.path("rbac.authorization.k8s.io/v1", "roles/epp")
    rules = (await cluster.call("GET", role))["rules"]
    pods = [rule for rule in rules if "pods" in rule["resources"]]
    await cluster.patch(role, {"rules": [rule for rule in rules if rule not in pods]})
    settings = {"pool_name": "pool", "namespace": cluster.namespace, "kube_retry_seconds": 0.05}
    async with follow(limited, **settings) as followed:
        await followed.until(lambda: "403" in followed.discovery.status().sources[1].error)
        assert 'cannot list resource "pods"' in followed.discovery.status().sources[1].error
        assert followed.discovery.waiting_for() == ("the first list from pods of pool",)
        await cluster.patch(role, {"rules": rules})
        await followed.until_places("10.0.0.1:8000")


async def test_a_rotated_token_is_read_anew(cluster: Cluster, tmp_path: Path):
    await grant(cluster)
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    file = tmp_path / "token"
    file.write_text(await token(cluster))
    client = KubernetesClient(str(cluster.server.kubeconfig(tmp_path / "rotated", token_file=file)))
    settings = {"pool_name": "pool", "namespace": cluster.namespace, "kube_watch_seconds": 1}
    async with follow(client, **settings) as followed:
        await followed.until_places("10.0.0.1:8000")
        accounts = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
        await cluster.delete(f"{accounts}/epp")  # every token of the account is void
        await cluster.create(accounts, {"metadata": {"name": "epp"}})
        file.write_text(await token(cluster))
        await cluster.pod("b", "10.0.0.2")
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        await cluster.pod("c", "10.0.0.3")
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")


async def test_a_rotated_ca_is_read_anew(cluster: Cluster, tmp_path: Path):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    path = cluster.server.kubeconfig(tmp_path / "rotated")
    config = yaml.safe_load(path.read_text())
    ca = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(ca)
    config["clusters"][0]["cluster"]["certificate-authority"] = str(ca)
    path.write_text(yaml.safe_dump(config))
    settings = {"pool_name": "pool", "namespace": cluster.namespace, "kube_retry_seconds": 0.1}
    async with follow(KubernetesClient(str(path)), **settings) as followed:
        await followed.until(lambda: "certificate" in followed.discovery.status().sources[0].error)
        ca.write_bytes(cluster.server.ca.read_bytes())
        await followed.until_places("10.0.0.1:8000")


async def test_a_void_token_is_a_failure_that_names_it(cluster: Cluster, tmp_path: Path):
    client = KubernetesClient(str(cluster.server.kubeconfig(tmp_path / "void", token="void")))
    await client.open()
    with pytest.raises(ApiError, match="401"):
        async with client.get(cluster.pods, {}, silence_seconds=5):
            pass
    await client.close()
