"""Who may be picked: what discovery says exists, as one change of the pool per turn of the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool

_log = structlog.get_logger()


class Membership:
    """Joins the endpoints of several sources into the pool.

    A source calls `changed`; all changes of one turn of the event loop become one change of the pool, at its end.
    """

    def __init__(self, pool: Pool, *, most: int) -> None:
        self._pool = pool
        self._most = most
        self._sources: list[Callable[[], Iterable[Endpoint]]] = []
        self._pending: asyncio.Handle | None = None
        self._overfull = False

    def add_source(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        """`endpoints()` gives all endpoints of one source as they are now; an earlier source wins an address."""
        self._sources.append(endpoints)

    def changed(self) -> None:
        """Some source has other endpoints than before."""
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_soon(self.apply)

    def apply(self) -> None:
        """Bring the pool up to date now."""
        self._pending = None
        by_place: dict[str, Endpoint] = {}
        for source in self._sources:
            for endpoint in source():
                by_place.setdefault(endpoint.host_port, endpoint)
        self._pool.replace(self._bounded(list(by_place.values())))

    def _bounded(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        overfull = len(endpoints) > self._most
        if overfull and not self._overfull:
            _log.warning("more endpoints than EPP_MAX_ENDPOINTS; the rest is left out", found=len(endpoints))
        self._overfull = overfull
        return endpoints[: self._most]
