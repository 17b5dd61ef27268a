"""One InferencePool and the pods that it selects."""

import asyncio
from enum import Enum

import msgspec
import structlog

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.kubernetes.client import ApiError, UnreachableError
from epp.endpoints.kubernetes.cluster import Cluster, Defaults
from epp.endpoints.kubernetes.inference_pool import OLD_GROUP, VERSIONS, PoolSpec, PoolSpecError, pool_spec
from epp.endpoints.kubernetes.objects import InferencePool, ObjectList
from epp.endpoints.kubernetes.pod_source import PodSource
from epp.endpoints.kubernetes.watch import NOT_FOUND, Change, Listed, Put, Resource, follow
from epp.endpoints.source import Source

_log = structlog.get_logger()


class PoolFeed:
    """Follows the pool, in whichever version the cluster serves, and through it its pods."""

    def __init__(self, cluster: Cluster, defaults: Defaults, name: str, group: str | None = None) -> None:
        self._cluster = cluster
        self._name = name
        self._versions = [(known, version) for known, version in VERSIONS if group in (None, known)]
        self._pool = Source(f"pool {name}", cluster.metrics)
        self._pods = PodSource(cluster, defaults, f"pods of {name}")
        self._spec: PoolSpec | None = None
        self._problem = ""
        self.sources = (self._pool, self._pods.source)

    def endpoints(self) -> list[Endpoint]:
        """All endpoints of the pool's pods."""
        return self._pods.endpoints()

    def at(self, place: Place) -> Endpoint | None:
        """The one of them at `place`."""
        return self._pods.at(place)

    def problem(self) -> str:
        """Why there is no usable pool."""
        return self._problem

    async def run(self) -> None:
        """Follow the pool until cancelled."""
        path = await self._served_path()
        resource = Resource(path=path, kind=InferencePool, field_selector=f"metadata.name={self._name}")
        try:
            async for change in follow(self._cluster.client, resource, self._pool, self._cluster.timing):
                self._take(change)
        finally:
            await self._pods.stop()

    def _take(self, change: Change[InferencePool]) -> None:
        if isinstance(change, Listed):
            pool = next((pool for pool in change.objects if pool.metadata.name == self._name), None)
        else:
            pool = change.object if isinstance(change, Put) else None
        spec, self._problem = self._read(pool)
        if spec != self._spec:
            _log.info("inference pool changed", pool=self._name, problem=self._problem)
            self._spec = spec
            self._pods.respecify(spec)

    def _read(self, pool: InferencePool | None) -> tuple[PoolSpec | None, str]:
        name = f"InferencePool {self._cluster.namespace}/{self._name}"
        if pool is None or pool.metadata.deletion_timestamp:
            return None, f"{name}, which does not exist"
        try:
            return pool_spec(pool), ""
        except PoolSpecError as error:
            return None, f"{name} to be right: {error}"

    async def _served_path(self) -> str:
        """The path of the newest version that has the pool, else of the newest that is served; asks until one is."""
        while True:
            looks = {(group, version): await self._look(group, version) for group, version in self._versions}
            for wanted in (_Look.HOLDS, _Look.SERVED):
                for (group, version), look in looks.items():
                    if look is wanted:
                        if group == OLD_GROUP:
                            _log.warning("InferencePool v1alpha2 is obsolete; move to v1", pool=self._name)
                        return self._path(group, version)
            await asyncio.sleep(self._cluster.timing.longest_pause)

    def _path(self, group: str, version: str) -> str:
        return f"/apis/{group}/{version}/namespaces/{self._cluster.namespace}/inferencepools"

    async def _look(self, group: str, version: str) -> "_Look":
        query = {"limit": "1", "fieldSelector": f"metadata.name={self._name}"}
        silence = self._cluster.timing.list_silence
        try:
            async with self._cluster.client.get(self._path(group, version), query, silence_seconds=silence) as answer:
                pools = msgspec.json.decode(await answer.read(), type=ObjectList)
                return _Look.HOLDS if pools.items else _Look.SERVED
        except ApiError as error:
            if group == OLD_GROUP and len(self._versions) > 1:
                return _Look.ABSENT  # what counts then is what was said of the newer
            missing = "the cluster knows no InferencePool: install the Gateway API Inference Extension"
            self._pool.failed(missing if error.status == NOT_FOUND else str(error))
        except (UnreachableError, msgspec.DecodeError) as error:
            self._pool.failed(str(error))
        return _Look.ABSENT


class _Look(Enum):
    """What a look for the pool in one version found."""

    ABSENT = "the version is not served, or may not be read"
    SERVED = "the version is served, without the pool"
    HOLDS = "the pool is there"
