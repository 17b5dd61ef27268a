"""Which engines are asked where they publish KV events, and when again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from epp.endpoints.endpoint import Endpoint
from epp.kvcache.source_discovery import discover
from epp.kvcache.sources import Source

_AT_ONCE = 16
"""Engines that are asked at the same time."""
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0


@dataclass(slots=True)
class _Asked:
    endpoint: Endpoint
    sources: list[Source] = field(default_factory=list)
    """As it last said."""
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    due: float = 0.0
    task: asyncio.Task[None] | None = None


class Inquiries:
    """Asks each engine at once, and again in growing pauses while it does not say, or is not where it said.

    An engine may start later than it is known, and a restarted one may publish on other ports.
    """

    def __init__(self, timeout_seconds: float, found: Callable[[int, Endpoint, list[Source]], None]) -> None:
        """`found(column, endpoint, sources)` is told what an engine says that it had not said before."""
        self._timeout_seconds = timeout_seconds
        self._found = found
        self._asked: dict[int, _Asked] = {}
        self._few_at_once = asyncio.Semaphore(_AT_ONCE)

    @property
    def asking(self) -> int:
        """Engines that have not answered yet."""
        return sum(asked.task is not None for asked in self._asked.values())

    def begin(self, column: int, endpoint: Endpoint) -> None:
        """Ask the engine of an endpoint that joined."""
        asked = self._asked[column] = _Asked(endpoint)
        self._ask(column, asked)

    def end(self, column: int) -> None:
        """The endpoint left."""
        asked = self._asked.pop(column, None)
        if asked is not None and asked.task is not None:
            asked.task.cancel()

    def tick(self, now: float, connected: Callable[[int], bool]) -> None:
        """Ask again whose time has come; `connected(column)` is whether all publishers that it named are there."""
        for column, asked in self._asked.items():
            if asked.task is not None:
                continue
            if asked.sources and connected(column):
                asked.pause_seconds, asked.due = _FIRST_PAUSE_SECONDS, 0.0
            elif not asked.due:
                asked.due = now + asked.pause_seconds
                asked.pause_seconds = min(2 * asked.pause_seconds, _LONGEST_PAUSE_SECONDS)
            elif now >= asked.due:
                self._ask(column, asked)

    def _ask(self, column: int, asked: _Asked) -> None:
        asked.due = 0.0
        asked.task = asyncio.create_task(self._inquire(column, asked), name="KV sources")

    async def _inquire(self, column: int, asked: _Asked) -> None:
        try:
            async with self._few_at_once:
                sources = await discover(asked.endpoint, self._timeout_seconds)
        finally:
            asked.task = None
        if sources and sources != asked.sources:
            asked.sources = sources
            self._found(column, asked.endpoint, sources)
