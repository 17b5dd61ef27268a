"""What the real API server says of versions and time: 410 in each form, bookmarks, repeated lists, another clock."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.objects import Pod
from epp.endpoints.kubernetes.watch import Resource, Timing
from epp.endpoints.kubernetes.watch import follow as follow_watch
from epp.endpoints.source import Source
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.followed import follow
from tests.kubernetes.meddling import MeddlingClient, Query

DAY = 86_400.0


@pytest.fixture
def meddling(api_server: ApiServer, tmp_path: Path) -> MeddlingClient:
    return MeddlingClient(str(api_server.kubeconfig(tmp_path / "meddling")))


async def a_version_that_is_history(cluster: Cluster) -> str:
    """The version of a list, after which much happens and etcd forgets it."""
    version: str = (await cluster.call("GET", cluster.pods))["metadata"]["resourceVersion"]
    await cluster.pod("churn", "10.0.0.99", labels={"app": "other"})
    await cluster.delete(f"{cluster.pods}/churn")
    await asyncio.to_thread(cluster.server.compact)
    return version


@asynccontextmanager
async def restarted(server: ApiServer, *flags: str) -> AsyncIterator[None]:
    """The server killed and started again with `flags`; at the end as it was."""
    try:
        await restart(server, *flags)
        yield
    finally:
        if flags:
            await restart(server)


async def restart(server: ApiServer, *flags: str) -> None:
    server.stop("apiserver")
    server.spawn(*flags)
    await asyncio.to_thread(server.wait_ready)


@pytest.mark.parametrize("flags", [(), ("--watch-cache=false",)], ids=["status 410", "event 410"])
async def test_a_watch_from_a_version_that_is_gone_means_a_new_list(
    api_server: ApiServer, cluster: Cluster, meddling: MeddlingClient, flags: tuple[str, ...]
):
    """A restarted server with its watch cache answers 410; one without opens the watch and says 410 in an event."""
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    old = await a_version_that_is_history(cluster)
    bent: list[str] = []

    async def from_the_old(query: Query) -> Query:
        if "watch" in query and "labelSelector" in query and not bent:
            bent.append(query["resourceVersion"])
            return query | {"resourceVersion": old}
        return query

    settings = {"pool_name": "pool", "namespace": cluster.namespace, "kube_watch_seconds": 1}
    async with restarted(api_server, *flags), follow(meddling, **settings) as followed:
        sources = followed.discovery.status
        await followed.until_places("10.0.0.1:8000")
        await followed.until(lambda: not any(source.error for source in sources().sources))
        failures = sum(source.failures for source in sources().sources)
        meddling.meddle = from_the_old
        await followed.until(lambda: bent != [])
        lists = meddling.lists("pods")
        await followed.until(lambda: meddling.lists("pods") > lists)
        await cluster.pod("b", "10.0.0.2")
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        assert sum(source.failures for source in sources().sources) == failures, "410 is no failure"


async def test_a_list_whose_next_page_is_gone_begins_anew(
    api_server: ApiServer, cluster: Cluster, meddling: MeddlingClient
):
    """A server with a watch cache keeps the pages of a list; one without answers 410."""
    await cluster.pool()
    await asyncio.gather(*(cluster.pod(f"p{i}", f"10.0.1.{i}") for i in range(120)))
    held: list[str] = []

    async def after_compaction(query: Query) -> Query:
        if "continue" in query and not held:
            held.append(query["continue"])
            await cluster.delete(f"{cluster.pods}/p0")
            await asyncio.to_thread(api_server.compact)
        return query

    meddling.meddle = after_compaction
    async with (
        restarted(api_server, "--watch-cache=false"),
        follow(meddling, pool_name="pool", namespace=cluster.namespace) as followed,
    ):
        await followed.until_places(*(f"10.0.1.{i}:8000" for i in range(1, 120)))
        assert held
        assert meddling.lists("pods") == 2


async def test_bookmarks_are_signs_of_life_and_change_nothing(cluster: Cluster, client: KubernetesClient):
    await cluster.pod("a", "10.0.0.1")
    seen: list[int | None] = []

    class Heard(Source):
        def seen(self, *, objects: int | None = None) -> None:
            seen.append(objects)
            super().seen(objects=objects)

    changes = 0

    async def run() -> None:
        nonlocal changes
        resource = Resource(path=cluster.pods, kind=Pod, label_selector="app=vllm")
        timing = Timing(watch=5, first_watch=5)
        async with aclosing(follow_watch(client, resource, Heard("pods"), timing)) as stream:
            async for _ in stream:
                changes += 1

    await client.open()
    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(20):
            while not seen:  # noqa: ASYNC110 - the source tells nobody
                await asyncio.sleep(0.01)
            await cluster.pod("other", "10.0.0.2", labels={"app": "other"})  # moves the version on
            while len(seen) < 2:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        assert seen == [1, None], "the list, and a line that is no change"
        assert changes == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_lists_that_repeat_all_pods_change_nothing(cluster: Cluster, meddling: MeddlingClient):
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    await cluster.pod("b", "10.0.0.2")
    async with follow(meddling, pool_name="pool", namespace=cluster.namespace, kube_watch_seconds=1) as followed:
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        before = followed.pool.snapshot()
        lists = meddling.lists("pods")
        await followed.until(lambda: meddling.lists("pods") >= lists + 3)
        assert followed.pool.snapshot() is before, "nobody joined, left or was made anew"


@pytest.mark.parametrize("skew", [-DAY, DAY])
async def test_our_clock_may_be_wrong_and_jump(
    cluster: Cluster, client: KubernetesClient, monkeypatch: pytest.MonkeyPatch, skew: float
):
    """Nothing compares our clock with the server's: waits are monotonic, and pods' ages meet only each other."""
    real, offset = time.time, [skew]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    await cluster.pool()
    await cluster.pod("a", "10.0.0.1")
    async with follow(client, pool_name="pool", namespace=cluster.namespace, kube_watch_seconds=1) as followed:
        await followed.until_places("10.0.0.1:8000")
        offset[0] = -skew
        await cluster.pod("b", "10.0.0.2")
        await followed.until_places("10.0.0.1:8000", "10.0.0.2:8000")
        await cluster.delete(f"{cluster.pods}/a")
        await followed.until_places("10.0.0.2:8000")
        status = followed.discovery.status()
        assert all(0.0 <= source.seconds_since_seen < DAY / 2 for source in status.sources)
        assert not any(source.failures for source in status.sources)


def test_no_source_of_endpoints_reads_the_wall_clock():
    folder = Path(__file__).parents[2] / "epp" / "endpoints"
    for path in folder.rglob("*.py"):
        text = path.read_text()
        assert "time.time(" not in text, path
        assert "datetime" not in text, path
