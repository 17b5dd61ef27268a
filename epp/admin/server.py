"""The admin port: `/status` for operators and their tools."""

from collections.abc import Callable

from aiohttp import web

from epp.admin.http import HttpListener
from epp.admin.status import Status, encode


class AdminServer(HttpListener):
    """Serves what `collect` returns at the moment of each request.

    It listens on loopback unless told otherwise: the document names every worker and all settings.
    """

    def __init__(self, collect: Callable[[], Status], *, host: str = "127.0.0.1", port: int = 9091) -> None:
        self._collect = collect
        application = web.Application()
        application.add_routes([web.get("/status", self._status)])
        super().__init__(application, host=host, port=port)

    async def _status(self, _request: web.Request) -> web.Response:
        return web.Response(body=encode(self._collect()), content_type="application/json")
