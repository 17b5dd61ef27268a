"""One place for a process: it is started, watched, and started again when it ends without being asked to."""

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import structlog

from epp.peers.addresses import Processes
from epp.processes.child import run_child
from epp.settings import Settings

_log = structlog.get_logger(__name__)

_COULD_NOT_START = (2, 3)
"""Exit codes of a process that a new start does not help."""


@dataclass(slots=True)
class Backoff:
    """Pauses before new starts: each twice the one before, from the first again after a long life."""

    first: float = 0.2
    most: float = 30.0
    long_life: float = 60.0
    _next: float = 0.0

    def after(self, lived: float) -> float:
        """The pause after a process that lived so many seconds."""
        pause = self.first if lived >= self.long_life or not self._next else self._next
        self._next = min(pause * 2, self.most)
        return pause


class Slot:
    """Keeps one process running until `stop`. Fork is never used: gRPC's threads do not survive it."""

    def __init__(self, settings: Settings, processes: Processes, changed: Callable[[], None]) -> None:
        """`changed` is called when the process gets ready, or ends."""
        self.index = processes.index
        self.ready = False
        self.restarts = 0
        self.failed: int | None = None
        """Exit code of a process that could not start at all."""
        self._settings = settings
        self._processes = processes
        self._changed = changed
        self._backoff = Backoff()
        self._stop = asyncio.Event()
        self._was_ready = False
        self._process: SpawnProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process is not None else None

    async def keep(self) -> None:
        """Run until stopped, or until a start proves to be of no use."""
        while True:
            started = time.monotonic()
            code = await self._run_once()
            if self._stop.is_set():
                return
            if code in _COULD_NOT_START and not self._was_ready:
                self.failed = code
                self._changed()
                return
            self.restarts += 1
            pause = self._backoff.after(time.monotonic() - started)
            _log.error("a process ended; it is started again", process=self.index, exit_code=code, pause_seconds=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
                return

    def stop(self) -> None:
        """Ask the process to drain and end; a second time: to end at once."""
        self._stop.set()
        process = self._process
        if process is not None and process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _run_once(self) -> int:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = process = context.Process(
            target=run_child, args=(self._settings, self._processes, theirs), name=f"epp {self.index}"
        )
        await asyncio.to_thread(process.start)
        theirs.close()
        if self._stop.is_set():
            process.terminate()
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._hear, ours)
        try:
            return await _ended(process)
        finally:
            loop.remove_reader(ours.fileno())
            ours.close()
            self._process = None
            self._set_ready(False)

    def _hear(self, child: "Connection[bool, bool]") -> None:
        try:
            self._set_ready(child.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(child.fileno())

    def _set_ready(self, ready: bool) -> None:
        self.ready = ready
        self._was_ready |= ready
        self._changed()


async def _ended(process: SpawnProcess) -> int:
    """The exit code; that of a signal is negative."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(process.sentinel, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()
    code = process.exitcode
    process.close()
    return code if code is not None else -signal.SIGKILL
