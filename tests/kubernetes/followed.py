"""A pool that a running discovery keeps."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from epp.endpoints.discovery import Discovery
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.pool import Pool
from epp.settings import EndpointsSettings
from tests.waiting import until


class Followed:
    """A pool kept by a running discovery."""

    def __init__(self, pool: Pool, discovery: Discovery) -> None:
        self.pool = pool
        self.discovery = discovery

    def places(self) -> set[str]:
        return set(self.pool.snapshot().position)

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        await until(condition, seconds, said=lambda: f"{self.places()}, {self.discovery.status()}")

    async def until_places(self, *places: str, seconds: float = 30.0) -> None:
        await self.until(lambda: self.places() == set(places), seconds)


@asynccontextmanager
async def follow(client: KubernetesClient, **settings: object) -> AsyncIterator[Followed]:
    pool = Pool()
    values = {"kube_retry_seconds": 0.5} | settings
    discovery = Discovery(EndpointsSettings.model_validate(values), pool, CollectorRegistry(), client)
    await discovery.start()
    try:
        yield Followed(pool, discovery)
    finally:
        await discovery.stop()
