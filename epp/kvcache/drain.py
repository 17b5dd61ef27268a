"""Many ZMQ sockets served in short slices of the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq

Work = Callable[[], bool]
"""One step of at most a few hundred microseconds; False when there is no more to do for now."""


@dataclass(slots=True)
class DrainCounts:
    """How the slices went."""

    slices: int = 0
    full_slices: int = 0
    """Slices that ended with work left: other work of the loop went first."""
    longest_seconds: float = 0.0


class Drain:
    """Runs the work of sockets that have something to read, each in turn, never long at a time.

    ZMQ's file descriptor becomes readable on a change only, so work must go on until the socket has no more.
    """

    def __init__(self, *, slice_seconds: float = 0.001) -> None:
        self._slice_seconds = slice_seconds
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Work] = deque()
        self._queued: set[Work] = set()
        self._scheduled = False
        self.counts = DrainCounts()

    def watch(self, socket: zmq.Socket[bytes], work: Work) -> None:
        """Do `work` whenever `socket` may have something to read."""
        self._loop.add_reader(socket.fileno(), self.wake, work)
        self.wake(work)

    def forget(self, socket: zmq.Socket[bytes]) -> None:
        """Stop watching; call before the socket is closed."""
        self._loop.remove_reader(socket.fileno())

    def wake(self, work: Work) -> None:
        """Queue `work` for the next slice."""
        if work not in self._queued:
            self._queued.add(work)
            self._ready.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        started = time.perf_counter()
        end = started + self._slice_seconds
        while self._ready and time.perf_counter() < end:
            work = self._ready.popleft()
            self._queued.discard(work)
            if work():
                self.wake(work)
        self._count(time.perf_counter() - started)
        self._scheduled = bool(self._ready)
        if self._ready:
            self._loop.call_soon(self._slice)

    def _count(self, seconds: float) -> None:
        self.counts.slices += 1
        self.counts.full_slices += bool(self._ready)
        self.counts.longest_seconds = max(self.counts.longest_seconds, seconds)
