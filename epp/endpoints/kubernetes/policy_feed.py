"""InferenceObjectives and InferenceModelRewrites of one pool, followed in both API groups."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from epp.endpoints.kubernetes.cluster import Cluster
from epp.endpoints.kubernetes.policies import GROUPS, VERSION, ModelRewrite, Objective, Rewrites, priorities
from epp.endpoints.kubernetes.watch import Listed, Put, Resource, follow
from epp.endpoints.source import Source, keep_running

T = TypeVar("T", Objective, ModelRewrite)


class _Kind(Generic[T]):
    """The objects of one kind in one group, as they are now."""

    def __init__(self, cluster: Cluster, group: str, plural: str, kind: type[T], changed: Callable[[], None]) -> None:
        self.source = Source(f"{plural}.{group}", cluster.metrics, optional=True)
        self.objects: dict[str, T] = {}
        self._cluster = cluster
        self._changed = changed
        path = f"/apis/{group}/{VERSION}/namespaces/{cluster.namespace}/{plural}"
        self._resource: Resource[T] = Resource(path=path, kind=kind)

    async def run(self) -> None:
        async for change in follow(self._cluster.client, self._resource, self.source, self._cluster.timing):
            if isinstance(change, Listed):
                self.objects = {found.metadata.name: found for found in change.objects}
            elif isinstance(change, Put):
                self.objects[change.object.metadata.name] = change.object
            else:
                self.objects.pop(change.name, None)
            self._changed()


class PolicyFeed:
    """What the cluster says about priorities and models; kinds that are not installed are empty."""

    def __init__(self, cluster: Cluster, pool: str) -> None:
        self._pool = pool
        self._objectives = [
            _Kind(cluster, group, "inferenceobjectives", Objective, self._count_priorities) for group in GROUPS
        ]
        self._rewrites = [
            _Kind(cluster, group, "inferencemodelrewrites", ModelRewrite, self._read_rules) for group in GROUPS
        ]
        self._kinds: list[_Kind[Objective] | _Kind[ModelRewrite]] = [*self._objectives, *self._rewrites]
        self.sources = tuple(kind.source for kind in self._kinds)
        self.priorities: Mapping[str, int] = {}
        """Priority by name of objective."""
        self.rewrites = Rewrites()
        """The rules by which models are rewritten."""

    async def run(self) -> None:
        """Follow all kinds until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(keep_running(kind.run, kind.source), name=f"watch {kind.source.name}")

    def _count_priorities(self) -> None:
        self.priorities = priorities(
            self._pool, [found for kind in self._objectives for found in kind.objects.values()]
        )

    def _read_rules(self) -> None:
        self.rewrites = Rewrites(self._pool, [found for kind in self._rewrites for found in kind.objects.values()])
