"""Who may do something expensive now, when only a few may at a time."""

from collections import deque
from collections.abc import Callable

Begin = Callable[[], None]


class Turns:
    """First come, first served; a turn lasts from the call of what was given to `take` until `leave`."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: deque[Begin] = deque()
        self._having: set[Begin] = set()

    @property
    def waiting(self) -> int:
        """Those whose turn has not come."""
        return len(self._waiting)

    def take(self, begin: Begin) -> None:
        """Call `begin` when its turn comes, at once if there is one free."""
        self._waiting.append(begin)
        self._next()

    def leave(self, begin: Begin) -> None:
        """End a turn, or no longer wait for one; without either, nothing happens."""
        if begin in self._having:
            self._having.remove(begin)
            self._free += 1
            self._next()
        elif begin in self._waiting:
            self._waiting.remove(begin)

    def _next(self) -> None:
        while self._free and self._waiting:
            begin = self._waiting.popleft()
            self._having.add(begin)
            self._free -= 1
            begin()
