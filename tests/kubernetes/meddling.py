"""A client whose questions to the real API server a test can hold up or bend; the answers are the server's own."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp

from epp.endpoints.kubernetes.client import KubernetesClient

Query = dict[str, str]


class MeddlingClient(KubernetesClient):
    """Passes each question through `meddle(query)` first, and keeps account of them."""

    def __init__(self, kubeconfig: str, meddle: Callable[[Query], Awaitable[Query]] | None = None) -> None:
        super().__init__(kubeconfig)
        self.meddle = meddle
        self.asked: list[Query] = []

    @asynccontextmanager
    async def get(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """As the base class."""
        own = dict(query)
        if self.meddle is not None:
            own = await self.meddle(own)
        self.asked.append(own | {"path": path})
        async with super().get(path, own, silence_seconds=silence_seconds) as response:
            yield response

    def lists(self, of: str) -> int:
        """How many lists of `of` (`pods`) began."""
        return sum(
            query["path"].endswith(f"/{of}") and "watch" not in query and "continue" not in query
            for query in self.asked
        )
