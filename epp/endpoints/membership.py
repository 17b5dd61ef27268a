"""Who may be picked: what discovery says exists, as one change of the pool per turn of the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import structlog

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool

_log = structlog.get_logger()

LONGEST_PAUSE = 0.02
SHARE = 0.1
"""Of the event loop's time that may go into changes of the pool, as far as LONGEST_PAUSE allows."""


class Membership:
    """Joins the endpoints of several sources into the pool.

    A source calls `changed`. The first change after a pause reaches the pool at the end of the same turn of the event
    loop. Each change costs a look at all endpoints, so in a storm of changes the pool pauses: for ten times as long as
    its last change took, some 5 ms for 1,000 endpoints, but never for so long that who left is picked much longer.
    """

    def __init__(self, pool: Pool, *, most: int) -> None:
        self._pool = pool
        self._most = most
        self._sources: list[Callable[[], Iterable[Endpoint]]] = []
        self._pending: asyncio.Handle | None = None
        self._overfull = False
        self._not_before = 0.0

    def add_source(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        """`endpoints()` gives all endpoints of one source as they are now; an earlier source wins an address."""
        self._sources.append(endpoints)

    def changed(self) -> None:
        """Some source has other endpoints than before."""
        if self._pending is None:
            loop = asyncio.get_running_loop()
            soon = self._not_before <= loop.time()
            self._pending = loop.call_soon(self.apply) if soon else loop.call_at(self._not_before, self.apply)

    def apply(self) -> None:
        """Bring the pool up to date now."""
        begun = monotonic()
        self._pending = None
        endpoints = [endpoint for source in self._sources for endpoint in source()]
        if len(self._sources) > 1:
            by_place = {endpoint.host_port: endpoint for endpoint in reversed(endpoints)}
            endpoints = [endpoint for endpoint in endpoints if by_place[endpoint.host_port] is endpoint]
        self._pool.replace(self._bounded(endpoints))
        pause = min((monotonic() - begun) / SHARE, LONGEST_PAUSE)
        self._not_before = asyncio.get_running_loop().time() + pause

    def _bounded(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        overfull = len(endpoints) > self._most
        if overfull and not self._overfull:
            _log.warning("more endpoints than EPP_MAX_ENDPOINTS; the rest is left out", found=len(endpoints))
        self._overfull = overfull
        return endpoints[: self._most]
