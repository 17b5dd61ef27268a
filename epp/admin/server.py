"""The admin port: `/status` and the last `/decisions`, for operators and their tools."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web

from epp.admin.http import HttpListener
from epp.admin.status import Status, encode
from epp.scheduling.explain import DecisionRecord


class AdminServer(HttpListener):
    """Serves what `collect` returns at the moment of each request.

    It listens on loopback unless told otherwise: the document names every worker and all settings.
    """

    def __init__(
        self,
        collect: Callable[[], Status],
        decisions: Callable[[], list[DecisionRecord]] = list,
        *,
        host: str = "127.0.0.1",
        port: int = 9091,
        path: Path | None = None,
    ) -> None:
        self._collect = collect
        self._decisions = decisions
        application = web.Application()
        application.add_routes([web.get("/status", self._status), web.get("/decisions", self._last_decisions)])
        super().__init__(application, host=host, port=port, path=path)

    async def _status(self, _request: web.Request) -> web.Response:
        return web.Response(body=encode(self._collect()), content_type="application/json")

    async def _last_decisions(self, _request: web.Request) -> web.Response:
        document = await asyncio.to_thread(lambda: msgspec.json.encode(self._decisions()))
        return web.Response(body=document, content_type="application/json")
