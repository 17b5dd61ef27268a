"""The pods that a spec selects, followed; the spec may change while they are."""

import asyncio
from collections.abc import Sequence
from functools import partial

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.kubernetes.cluster import Cluster, Defaults
from epp.endpoints.kubernetes.inference_pool import PoolSpec
from epp.endpoints.kubernetes.objects import Pod
from epp.endpoints.kubernetes.pod_set import PodSet
from epp.endpoints.kubernetes.watch import SLICE, Listed, Put, Resource, follow
from epp.endpoints.source import Source, keep_running


class PodSource:
    """Watches only the pods that the selector of the moment selects."""

    def __init__(self, cluster: Cluster, defaults: Defaults, name: str) -> None:
        self.source = Source(name, cluster.metrics)
        self._cluster = cluster
        self._pods = PodSet(defaults)
        self._selector: str | None = None
        self._watch: asyncio.Task[None] | None = None

    def endpoints(self) -> list[Endpoint]:
        """All endpoints of these pods, as they are now."""
        return self._pods.endpoints()

    def at(self, place: Place) -> Endpoint | None:
        """The one of them at `place`."""
        return self._pods.at(place)

    def respecify(self, spec: PoolSpec | None) -> None:
        """Other pods or ports from now on: known pods are judged anew at once, others come with the next list."""
        self._pods.respecify(spec)
        self._cluster.changed()
        selector = None if spec is None else spec.selector()
        if selector != self._selector:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
            self._selector = selector
            if selector is not None:
                run = keep_running(partial(self._follow, selector), self.source)
                self._watch = asyncio.create_task(run, name=f"watch {self.source.name}")

    async def stop(self) -> None:
        """Watch no longer; the endpoints stay as they are."""
        self._selector = None
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None

    async def _follow(self, selector: str) -> None:
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods"
        resource = Resource(path=path, kind=Pod, label_selector=selector)
        async for change in follow(self._cluster.client, resource, self.source, self._cluster.timing):
            if isinstance(change, Listed):
                await self._take_list(change.objects)
            elif places := self._pods.apply(change):
                self._cluster.changed(places)

    async def _take_list(self, pods: Sequence[Pod]) -> None:
        """As one change, but in slices: who is gone first."""
        places = self._pods.keep({pod.metadata.name for pod in pods})
        try:
            for i, pod in enumerate(pods):
                places |= self._pods.apply(Put(pod))
                if i % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
        finally:
            self._cluster.changed(places)


class SelectorFeed:
    """Pods by a label selector of the settings, without an InferencePool."""

    def __init__(self, cluster: Cluster, defaults: Defaults, spec: PoolSpec) -> None:
        self._spec = spec
        self._pods = PodSource(cluster, defaults, "pods")
        self.sources = (self._pods.source,)

    def endpoints(self) -> list[Endpoint]:
        """All endpoints of the selected pods."""
        return self._pods.endpoints()

    def at(self, place: Place) -> Endpoint | None:
        """The one of them at `place`."""
        return self._pods.at(place)

    def problem(self) -> str:
        """Nothing that a person must mend."""
        return ""

    async def run(self) -> None:
        """Watch the pods until cancelled."""
        self._pods.respecify(self._spec)
        try:
            await asyncio.Event().wait()
        finally:
            await self._pods.stop()
