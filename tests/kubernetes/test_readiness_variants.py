"""Broken and healthy chains in a real API server: what `epp validate` says of them live, and by their snapshot."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

import pytest

from epp.endpoints.kubernetes.client import KubernetesClient
from epp.readiness.checks import ALL
from epp.readiness.find import find
from epp.readiness.judge import first_broken, judge
from epp.readiness.policy import Policy
from epp.readiness.rule import Result, Verdict
from epp.readiness.snapshot import files
from epp.readiness.snapshot.collect import take
from epp.readiness.snapshot.document import Snapshot
from tests.kubernetes.build import CRDS as OWN_CRDS
from tests.kubernetes.cluster import Cluster, load_crds
from tests.kubernetes.readiness import CRDS, apply, named, remove
from tests.readiness import variants
from tests.readiness.test_gateways import SHAPES
from tests.readiness.variants import Variant
from tests.readiness.world import World, healthy

Change = Callable[[World], None]
AT_ONCE = 4
OF_THE_WHOLE_SERVER = {4, 5}
"""Checks of CRDs, of which all tests of this server share one set."""
REFUSED = {"ports_twice", "pool_without_picker"}
"""What the API server itself does not take."""
NEEDS_A_KIND = {"pool_missing": "the legacy InferencePool, which no CRD of a current release has"}


@pytest.fixture
async def server(cluster: Cluster, upstream_crds: list[dict]) -> Cluster:
    crds = [*upstream_crds, *load_crds(OWN_CRDS / "own")]
    await cluster.install(*(crd for crd in crds if crd["metadata"]["name"] in CRDS))
    return cluster


@pytest.fixture
async def reader(client: KubernetesClient) -> AsyncIterator[KubernetesClient]:
    await client.open()
    yield client
    await client.close()


async def snapshot_of(server: Cluster, reader: KubernetesClient, change: Change) -> tuple[str, Snapshot]:
    """A snapshot of the healthy chain with one change, in a namespace of its own."""
    async with Cluster(server.server) as own:
        world = healthy()
        change(world)
        world = named(world, own.namespace)
        await apply(own, world)
        snapshot = await take(reader, [own.namespace])
        await remove(own, world)
        return own.namespace, snapshot


def judged(snapshot: Snapshot, namespace: str) -> list[Result]:
    return judge(find(snapshot.body, Policy(), datetime.now(UTC), namespaces=[namespace]), ALL)


async def each(server: Cluster, reader: KubernetesClient, changes: Sequence[Change]) -> dict[str, list[Result]]:
    """The live results of each; those of the snapshot as a file are the same."""
    free = asyncio.Semaphore(AT_ONCE)
    found: dict[str, list[Result]] = {}

    async def one(change: Change) -> None:
        async with free:
            namespace, snapshot = await snapshot_of(server, reader, change)
        found[change.__name__] = judged(snapshot, namespace)
        recorded = files.parse(files.to_yaml(snapshot), change.__name__)
        assert judged(recorded, namespace) == found[change.__name__]

    async with asyncio.TaskGroup() as group:
        for change in changes:
            group.create_task(one(change))
    return found


def tried(variant: Variant) -> bool:
    return variant.number not in OF_THE_WHOLE_SERVER and variant.name not in {*REFUSED, *NEEDS_A_KIND}


async def test_each_fault_is_named_first(server: Cluster, reader: KubernetesClient):
    faults = {variant.name: variant for variant in variants.ALL if tried(variant)}
    assert len(faults) >= 40
    results = await each(server, reader, [variant.break_ for variant in faults.values()])
    named_first = {name: first_broken(of_one) for name, of_one in results.items()}
    wrong = {
        name: None if it is None else it.text
        for name, it in named_first.items()
        if it is None or it.rule.number != faults[name].number
    }
    assert wrong == {}


async def test_no_false_alarm_for_any_gateway(server: Cluster, reader: KubernetesClient):
    results = await each(server, reader, SHAPES)
    good = (Verdict.PASSED, Verdict.SKIPPED)
    alarms = {name: [it for it in of_one if it.verdict not in good] for name, of_one in results.items()}
    assert {name: found for name, found in alarms.items() if found} == {}


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_some_the_server_refuses_itself(server: Cluster, reader: KubernetesClient, name: str):
    (variant,) = [one for one in variants.ALL if one.name == name]
    with pytest.raises(AssertionError, match="422"):
        await snapshot_of(server, reader, variant.break_)
