"""`epp snapshot` of a real API server: what is there, what is not, and what may not be read."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from epp.endpoints.kubernetes.client import KubernetesClient
from epp.readiness.snapshot import config_map, files
from epp.readiness.snapshot.collect import take
from epp.readiness.snapshot.document import State
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.test_rights import grant, token


@pytest.fixture
async def gateway_api(cluster: Cluster, upstream_crds: list[dict]) -> Cluster:
    names = {
        f"{plural}.gateway.networking.k8s.io"
        for plural in ("gatewayclasses", "gateways", "httproutes", "referencegrants")
    }
    await cluster.install(*(crd for crd in upstream_crds if crd["metadata"]["name"] in names))
    return cluster


SECRET = "s3cr3t-4711"


async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "epp.cli", *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)


async def test_the_admin_sees_all(gateway_api: Cluster, tmp_path: Path):
    await gateway_api.pool()
    await gateway_api.pod("a", "10.0.0.1")
    kubeconfig = str(gateway_api.server.kubeconfig(tmp_path / "kubeconfig"))
    file = str(tmp_path / "snapshot.json")
    done = await run(
        *("snapshot", "--kubeconfig", kubeconfig, "-n", gateway_api.namespace, "-o", file, "--format", "json")
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    body = files.read(file).body
    assert [pod.metadata.name for pod in body.sections.pods.objects] == ["a"]
    assert [pool.metadata.namespace for pool in body.sections.inference_pools.objects if pool.metadata.name == "pool"]
    assert body.sections.http_routes.state is State.OK
    assert body.sections.dynamo_graphs.state is State.ABSENT
    assert body.platform.server_version.startswith("v1.")
    assert "v1" in body.platform.api_groups["gateway.networking.k8s.io"]


async def test_no_secret_leaves_the_cluster(gateway_api: Cluster, tmp_path: Path):
    """As an admin, who could read all of them."""
    where = f"/api/v1/namespaces/{gateway_api.namespace}"
    await gateway_api.create(f"{where}/secrets", {"metadata": {"name": "s"}, "stringData": {"token": SECRET}})
    data = {"EPP_POOL_NAME": "pool", "EPP_API_KEY": SECRET, "notes": SECRET}
    await gateway_api.create(f"{where}/configmaps", {"metadata": {"name": "c"}, "data": data})
    container = {
        "name": "epp",
        "image": "epp",
        "args": ["serve", f"--api-key={SECRET}", "--token", SECRET],
        "env": [{"name": "HF_TOKEN", "value": SECRET}],
        "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
    }
    meta = {"name": "epp", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}}
    await gateway_api.create(f"{where}/pods", {"metadata": meta, "spec": {"containers": [container]}})
    kubeconfig = str(gateway_api.server.kubeconfig(tmp_path / "kubeconfig"))
    for form in ("yaml", "json"):
        done = await run("snapshot", "--kubeconfig", kubeconfig, "-n", gateway_api.namespace, "--format", form)
        assert done.returncode == 0
        assert "HF_TOKEN" in done.stdout
        assert SECRET not in done.stdout


async def test_what_may_not_be_read_is_denied(gateway_api: Cluster, tmp_path: Path):
    """With the EPP's own Role; no Gateway is not the same as no right to see one."""
    await grant(gateway_api)
    await gateway_api.pool()
    await gateway_api.pod("a", "10.0.0.1")
    limited = KubernetesClient(str(gateway_api.server.kubeconfig(tmp_path / "limited", token=await token(gateway_api))))
    await limited.open()
    try:
        sections = (await take(limited, [gateway_api.namespace])).body.sections
    finally:
        await limited.close()
    assert sections.pods.covers(gateway_api.namespace)
    assert sections.inference_pools.covers(gateway_api.namespace)
    assert not sections.inference_pools.covers("default")
    for section in (sections.gateways, sections.http_routes, sections.gateway_classes, sections.services):
        assert section.state is State.DENIED
        assert "403" in section.error
        assert not section.covers(gateway_api.namespace)


async def test_in_a_config_map(gateway_api: Cluster, client: KubernetesClient):
    await client.open()
    try:
        snapshot = await take(client, [gateway_api.namespace])
        place = f"cm://{gateway_api.namespace}/readiness"
        for _ in range(2):  # creates, then replaces
            await config_map.write(client, place, snapshot)
        assert await config_map.read(client, place) == snapshot
    finally:
        await client.close()


async def test_no_cluster(tmp_path: Path):
    done = await run("snapshot", "--kubeconfig", str(tmp_path / "none"))
    assert done.returncode == 3
    assert "no Kubernetes API server is known" in done.stderr
    done = await run("snapshot", "-o", "cm://only-a-namespace")
    assert done.returncode == 2
