"""One real API server for each test process: some tests break it, so it cannot be shared."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from epp.endpoints.kubernetes.client import KubernetesClient
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.build import build, crds
from tests.kubernetes.cluster import Cluster, load_crds

BUILD_SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(scope="session")
def kubeserver() -> Path:
    """The server's binary; a cold build takes minutes."""
    try:
        return build()
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no kube-apiserver can be built here: {error}")


@pytest.fixture(scope="session")
def api_server(kubeserver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(kubeserver, tmp_path_factory.mktemp("kube"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def upstream_crds(kubeserver: Path) -> list[dict]:
    return load_crds(crds())


@pytest.fixture
async def cluster(api_server: ApiServer, upstream_crds: list[dict]) -> AsyncIterator[Cluster]:
    """A namespace of the test's own, in a cluster that knows InferencePool."""
    async with Cluster(api_server) as cluster:
        await cluster.install(*(crd for crd in upstream_crds if crd["metadata"]["name"] == INFERENCE_POOLS))
        yield cluster


@pytest.fixture
async def client(api_server: ApiServer, tmp_path: Path) -> KubernetesClient:
    return KubernetesClient(str(api_server.kubeconfig(tmp_path / "kubeconfig")))


INFERENCE_POOLS = "inferencepools.inference.networking.k8s.io"
