"""The pool's endpoints, each with a column that all per-endpoint arrays share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint, HostPort


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """What one decision sees: position i of each field belongs to the same endpoint."""

    version: int
    endpoints: tuple[Endpoint, ...]
    columns: NDArray[np.intp]
    """Column of each endpoint in the arrays of load and index; stable for the life of an incarnation."""
    position: Mapping[HostPort, int]


Listener = Callable[[int, Endpoint], None]


class Pool:
    """The endpoints that may be picked now.

    A column belongs to one incarnation of an endpoint; it is given out again only after every listener has been told
    that the endpoint left, so arrays indexed by column never mix two workers.
    """

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str, int, HostPort], int] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._free: list[int] = []
        self._joined: list[Listener] = []
        self._left: list[Listener] = []
        self._version = 0
        self._snapshot = self._build()

    def on_join(self, listener: Listener) -> None:
        """Call `listener(column, endpoint)` for every endpoint that joins from now on."""
        self._joined.append(listener)

    def on_leave(self, listener: Listener) -> None:
        """Call `listener(column, endpoint)` for every endpoint that leaves from now on."""
        self._left.append(listener)

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Make the pool exactly `endpoints`; an unchanged incarnation keeps its column, load and cache."""
        wanted = {endpoint.incarnation: endpoint for endpoint in endpoints}
        for incarnation in self._columns.keys() - wanted.keys():
            self._remove(incarnation)
        for incarnation, endpoint in wanted.items():
            column = self._columns.get(incarnation)
            if column is None:
                self._add(incarnation, endpoint)
            else:
                self._endpoints[column] = endpoint
        self._version += 1
        self._snapshot = self._build()

    def snapshot(self) -> PoolSnapshot:
        """The pool as it is now; immutable, shared by all decisions until the next change."""
        return self._snapshot

    def _add(self, incarnation: tuple[str, str, int, HostPort], endpoint: Endpoint) -> None:
        column = heappop(self._free) if self._free else len(self._endpoints)
        self._columns[incarnation] = column
        self._endpoints[column] = endpoint
        for listener in self._joined:
            listener(column, endpoint)

    def _remove(self, incarnation: tuple[str, str, int, HostPort]) -> None:
        column = self._columns.pop(incarnation)
        endpoint = self._endpoints.pop(column)
        for listener in self._left:
            listener(column, endpoint)
        heappush(self._free, column)

    def _build(self) -> PoolSnapshot:
        columns = sorted(self._endpoints)
        endpoints = tuple(self._endpoints[column] for column in columns)
        return PoolSnapshot(
            version=self._version,
            endpoints=endpoints,
            columns=np.array(columns, dtype=np.intp),
            position={endpoint.host_port: i for i, endpoint in enumerate(endpoints)},
        )
