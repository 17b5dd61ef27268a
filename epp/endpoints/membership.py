"""Who may be picked: what discovery says exists, as one change of the pool per turn of the event loop."""

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol

import structlog

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.pool import Pool

_log = structlog.get_logger()

LONGEST_PAUSE = 0.02
SHARE = 0.1
"""Of the event loop's time that may go into changes of the pool, as far as LONGEST_PAUSE allows."""


class Members(Protocol):
    """The endpoints of one source as they are now."""

    def endpoints(self) -> Iterable[Endpoint]:
        """All of them."""

    def at(self, place: Place) -> Endpoint | None:
        """The one at `place`."""


class Membership:
    """Joins the endpoints of several sources into the pool.

    A source calls `changed`. The first change after a pause reaches the pool at the end of the same turn of the event
    loop. In a storm of changes the pool pauses: for ten times as long as its last change took, but never for so long
    that who left is picked much longer.
    """

    def __init__(self, pool: Pool, *, most: int) -> None:
        self._pool = pool
        self._most = most
        self._sources: list[Members] = []
        self._pending: asyncio.Handle | None = None
        self._overfull = False
        self._not_before = 0.0
        self._places: set[Place] = set()
        """Where something changed since the last change of the pool."""
        self._anywhere = True

    def add_source(self, members: Members) -> None:
        """Take in what `members` says as it is at each change; an earlier source wins a place."""
        self._sources.append(members)

    def changed(self, places: Iterable[Place] | None = None) -> None:
        """Some source has other endpoints than before, at `places` only; None: anywhere."""
        if places is None:
            self._anywhere = True
        else:
            self._places.update(places)
        if self._pending is None:
            loop = asyncio.get_running_loop()
            soon = self._not_before <= loop.time()
            self._pending = loop.call_soon(self.apply) if soon else loop.call_at(self._not_before, self.apply)

    def settle(self) -> None:
        """Bring the pool up to date now if a change waits."""
        if self._pending is not None:
            self._pending.cancel()
            self.apply()

    def apply(self) -> None:
        """Bring the pool up to date now."""
        begun = monotonic()
        self._pending = None
        if self._anywhere or self._overfull or len(self._pool) + len(self._places) > self._most:
            self._pool.replace(self._bounded(self._all()))
        else:
            self._pool.change({place: self._at(place) for place in sorted(self._places)})  # columns in a known order
        self._places.clear()
        self._anywhere = False
        pause = min((monotonic() - begun) / SHARE, LONGEST_PAUSE)
        self._not_before = asyncio.get_running_loop().time() + pause

    def _at(self, place: Place) -> Endpoint | None:
        found = (source.at(place) for source in self._sources)
        return next((endpoint for endpoint in found if endpoint is not None), None)

    def _all(self) -> Sequence[Endpoint]:
        endpoints: dict[Place, Endpoint] = {}
        for source in self._sources:
            for endpoint in source.endpoints():
                endpoints.setdefault(endpoint.place, endpoint)
        return list(endpoints.values())

    def _bounded(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        overfull = len(endpoints) > self._most
        if overfull and not self._overfull:
            _log.warning("more endpoints than EPP_MAX_ENDPOINTS; the rest is left out", found=len(endpoints))
        self._overfull = overfull
        return endpoints[: self._most]
