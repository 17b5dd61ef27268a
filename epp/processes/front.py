"""The metrics and admin ports of several processes: each answer is put together from theirs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from epp.admin.http import HttpListener
from epp.admin.status import OneOfSeveral, Status, decode, encode
from epp.peers.addresses import Processes
from epp.processes.merge import SummedMetrics, one_status
from epp.processes.slot import Slot

_SECONDS = 4.0
"""That a process has for its answer; one that has none is left out."""


class Front:
    """Asks the processes over their sockets in the folder of `processes`."""

    def __init__(self, processes: Processes, slots: Sequence[Slot], ready: Callable[[], bool]) -> None:
        self._processes = processes
        self._slots = slots
        self._ready = ready
        self._started = time.monotonic()

    def metrics_listener(self, host: str, port: int) -> HttpListener:
        """Serves /metrics."""
        application = web.Application()
        application.add_routes([web.get("/metrics", self._metrics)])
        return HttpListener(application, host=host, port=port)

    def admin_listener(self, host: str, port: int) -> HttpListener:
        """Serves /status and /decisions."""
        application = web.Application()
        application.add_routes([web.get("/status", self._status), web.get("/decisions", self._decisions)])
        return HttpListener(application, host=host, port=port)

    async def _metrics(self, request: web.Request) -> web.Response:
        answers = await self._ask_all("metrics", "/metrics")
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))

        def render() -> bytes:
            registry = CollectorRegistry()
            registry.register(SummedMetrics({index: answer.decode() for index, answer in answers.items()}))
            return encoder(registry)

        body = await asyncio.to_thread(render)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _status(self, _request: web.Request) -> web.Response:
        answers = {index: decode(answer) for index, answer in (await self._ask_all("admin", "/status")).items()}
        if not answers:
            raise web.HTTPServiceUnavailable(text="no process answers")
        status = one_status(
            list(answers.values()), ready=self._ready(), uptime_seconds=time.monotonic() - self._started
        )
        processes = tuple(self._one(slot, answers.get(slot.index)) for slot in self._slots)
        return web.Response(body=encode(replace(status, processes=processes)), content_type="application/json")

    async def _decisions(self, _request: web.Request) -> web.Response:
        answers = await self._ask_all("admin", "/decisions")
        merged = [
            record for answer in answers.values() for record in msgspec.json.decode(answer, type=list[msgspec.Raw])
        ]
        return web.Response(body=msgspec.json.encode(merged), content_type="application/json")

    def _one(self, slot: Slot, status: Status | None) -> OneOfSeveral:
        return OneOfSeveral(
            index=slot.index,
            pid=slot.pid,
            ready=slot.ready,
            restarts=slot.restarts,
            open=status.exchanges.open if status is not None else 0,
            begun=status.exchanges.begun if status is not None else 0,
        )

    async def _ask_all(self, face: str, path: str) -> dict[int, bytes]:
        indices = [slot.index for slot in self._slots]
        answers = await asyncio.gather(*(self._ask(index, face, path) for index in indices))
        return {index: answer for index, answer in zip(indices, answers, strict=True) if answer is not None}

    async def _ask(self, index: int, face: str, path: str) -> bytes | None:
        socket = self._processes.of(index).face(face)
        connector = aiohttp.UnixConnector(path=str(socket))
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get(f"http://epp{path}") as answer,
            ):
                return await answer.read() if answer.status == web.HTTPOk.status_code else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
