"""A time limit for many short waits: one timer for all of them, since one each costs more than what they wait for."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Wait:
    task: "asyncio.Task[object] | None"
    """None: over."""
    until: float
    expired: bool = False


class Patience:
    """Lets nothing take longer than `seconds`. As that is the same for all, they expire in the order they began."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits: deque[_Wait] = deque()
        self._armed = False

    async def wait(self, work: Coroutine[object, None, _T]) -> _T:
        """The result of `work`. Raises TimeoutError, with `work` cancelled, when it takes too long."""
        try:
            waits_for = work.send(None)
        except StopIteration as done:  # as most do, without a wait that could take long
            result: _T = done.value
            return result
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        wait = _Wait(task, loop.time() + self._seconds)
        self._waits.append(wait)
        if not self._armed:
            self._arm(loop, wait.until)
        try:
            return await _rest(work, waits_for)
        except asyncio.CancelledError:
            # Only our own cancellation is a timeout; the gateway may have left at the same moment.
            if wait.expired and not task.uncancel():
                raise TimeoutError from None
            raise
        finally:
            wait.task = None

    def _arm(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        self._armed = True
        loop.call_at(at, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._armed = False
        while self._waits:
            first = self._waits[0]
            if first.task is not None and first.until > now:
                self._arm(loop, first.until)
                return
            self._waits.popleft()
            if first.task is not None:
                first.expired = True
                first.task.cancel()


@coroutine
def _rest(work: Coroutine[object, None, _T], waits_for: object) -> Generator[object, None, _T]:
    """Go on with `work`, which has begun and waits."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - whatever comes is for the work, as with `await`
            go_on = partial(work.throw, error)
        else:
            go_on = partial(work.send, None)
        try:
            waits_for = go_on()
        except StopIteration as done:
            result: _T = done.value
            return result
