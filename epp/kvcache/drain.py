"""Many ZMQ sockets served in short slices of the event loop."""

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq

Work = Callable[[], bool]
"""One step of at most a few hundred microseconds; False when there is no more to do for now."""


_POLLED_AT_ONCE = 256


@dataclass(slots=True)
class DrainCounts:
    """How the slices went."""

    slices: int = 0
    full_slices: int = 0
    """Slices that ended with work left: other work of the loop went first."""
    longest_seconds: float = 0.0


class Drain:
    """Runs the work of sockets that have something to read, each in turn, never long at a time.

    ZMQ's file descriptor becomes readable on a change only, so work must go on until the socket has no more. All of
    them are polled behind one descriptor of ours, each change once: else every turn of the event loop would look at
    every socket that waits for its slice.
    """

    def __init__(self, *, slice_seconds: float = 0.001) -> None:
        self._slice_seconds = slice_seconds
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Work] = deque()
        self._queued: set[Work] = set()
        self._scheduled = False
        self._poller = select.epoll()
        self._watched: dict[int, Work] = {}
        self._loop.add_reader(self._poller.fileno(), self._poll)
        self.counts = DrainCounts()

    def watch(self, socket: zmq.Socket[bytes], work: Work) -> None:
        """Do `work` whenever `socket` may have something to read."""
        self._watched[socket.fileno()] = work
        self._poller.register(socket.fileno(), select.EPOLLIN | select.EPOLLET)
        self.wake(work)

    def forget(self, socket: zmq.Socket[bytes]) -> None:
        """Stop watching; call before the socket is closed."""
        if self._watched.pop(socket.fileno(), None) is not None:
            self._poller.unregister(socket.fileno())

    def wake(self, work: Work) -> None:
        """Queue `work` for the next slice."""
        if work not in self._queued:
            self._queued.add(work)
            self._ready.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def finish(self) -> None:
        """One last step of all work that waits, whether or not there is more."""
        last, self._ready = self._ready, deque()
        self._queued.clear()
        for work in last:
            work()

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._poller.fileno())
        self._poller.close()
        self._watched.clear()

    def _poll(self) -> None:
        for descriptor, _ in self._poller.poll(0, _POLLED_AT_ONCE):
            work = self._watched.get(descriptor)
            if work is not None:  # else another thread, which stops its part, has just forgotten it
                self.wake(work)

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
