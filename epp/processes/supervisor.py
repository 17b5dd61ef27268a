"""The parent of several processes: holds the port, keeps them running, answers for all of them."""

import asyncio
import secrets
import signal
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from epp.app import CouldNotStartError, listen, stop_signals
from epp.extproc.transport.health import Health, HealthServer
from epp.peers.addresses import Processes
from epp.processes.front import Front
from epp.processes.port import SharedPort
from epp.processes.slot import Slot
from epp.settings import Settings
from epp.telemetry.logs import configure_logs

_log = structlog.get_logger(__name__)


def supervise(settings: Settings, count: int) -> int:
    """Run `count` processes until SIGTERM or SIGINT; the exit code of `epp serve`."""
    configure_logs(settings.log_level)
    try:
        return asyncio.run(_Supervisor(settings, count).run())
    except CouldNotStartError as error:
        _log.error("could not start", reason=str(error))
        return 3


class _Supervisor:
    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._count = count
        self._health = Health()
        self._slots: list[Slot] = []
        self._changed = asyncio.Event()
        self._stopping = False
        self._said = False

    @property
    def ready(self) -> bool:
        """Whether requests may come: one process that is ready serves them, and only such ones listen."""
        return not self._stopping and any(slot.ready for slot in self._slots)

    async def run(self) -> int:
        stop = stop_signals()
        async with AsyncExitStack() as parts:
            await self._start(parts)
            keepers = [asyncio.create_task(slot.keep(), name=f"process {slot.index}") for slot in self._slots]
            verdict = asyncio.create_task(self._follow(stop), name="verdict")
            await stop.wait()
            stop.clear()
            await self._end(keepers, stop)
            verdict.cancel()
            await asyncio.gather(verdict, return_exceptions=True)
        failures = [slot.failed for slot in self._slots if slot.failed is not None]
        return max(failures, default=0)

    async def _start(self, parts: AsyncExitStack) -> None:
        settings = self._settings
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="epp-")))
        try:
            port = SharedPort(settings.host, settings.grpc_port)
        except OSError as error:
            raise CouldNotStartError(f"EPP_GRPC_PORT: {error}") from None
        parts.callback(port.close)
        processes = Processes(self._count, 0, folder, secrets.token_bytes(32))
        shared = settings.model_copy(update={"grpc_port": port.port})
        self._slots += [Slot(shared, replace(processes, index=i), self._changed.set) for i in range(self._count)]
        front = Front(processes, self._slots, lambda: self.ready)
        metrics = front.metrics_listener(settings.host, settings.metrics_port)
        admin = front.admin_listener(settings.admin_host, settings.admin_port)
        health = HealthServer(self._health, host=settings.host, port=settings.health_port)
        await listen("EPP_METRICS_PORT", metrics.start(), metrics.stop, parts)
        await listen("EPP_ADMIN_PORT", admin.start(), admin.stop, parts)
        health_port = await listen("EPP_HEALTH_PORT", health.start(), health.stop, parts)
        _log.info(
            "listening",
            grpc_port=port.port,
            tls=settings.secure_serving,
            health_port=health_port,
            metrics_port=metrics.port,
            admin_port=admin.port,
            processes=self._count,
        )

    async def _follow(self, stop: asyncio.Event) -> None:
        """Keep the verdict true; give up when a process cannot start at all."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if any(slot.failed is not None for slot in self._slots):
                stop.set()
            if self.ready is not self._said:
                self._said = self.ready
                await self._health.set_ready(self._said)
                _log.info("ready" if self._said else "not ready", processes=[slot.ready for slot in self._slots])

    async def _end(self, keepers: "list[asyncio.Task[None]]", hurry: asyncio.Event) -> None:
        """Let all processes drain; each further signal is passed on."""
        self._stopping = True
        self._changed.set()
        running = set(keepers)
        while running:
            for slot in self._slots:
                slot.stop()
            hurry.clear()
            hurried = asyncio.create_task(_heard(hurry))
            while running and not hurry.is_set():
                _, running = await asyncio.wait({*running, hurried}, return_when=asyncio.FIRST_COMPLETED)
                running.discard(hurried)
            hurried.cancel()
        _log.info("stopped", signal=signal.SIGTERM.name)


async def _heard(signal_: asyncio.Event) -> None:
    await signal_.wait()
