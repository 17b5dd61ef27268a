"""The metrics port: `/metrics` in the format that the scraper asks for."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from epp.admin.http import HttpListener


class MetricsServer(HttpListener):
    """Serves a registry.

    Rendering hundreds of series takes milliseconds, so it happens in one thread beside the event loop, one scrape at
    a time; collectors of our own must therefore read only what another thread may read.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - Prometheus scrapes from other nodes
        port: int = 9090,
        path: Path | None = None,
    ) -> None:
        self._registry = registry
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        application = web.Application()
        application.add_routes([web.get("/metrics", self._metrics)])
        super().__init__(application, host=host, port=port, path=path)

    async def stop(self) -> None:
        """Close the listener and its connections, and end the thread."""
        await super().stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.get_running_loop().run_in_executor(self._thread, encoder, self._registry)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response
