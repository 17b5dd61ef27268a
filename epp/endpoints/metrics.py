"""What the engines say of themselves, by pool column."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint

_VIEW_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One reading of an engine's metrics; None: the engine does not tell."""

    queued: float | None = None
    """Requests that wait for their prefill."""
    running: float | None = None
    kv_used: float | None = None
    """Share of the KV blocks in use, 0..1."""
    progress: float | None = None
    """Prompt and answer tokens since the engine's start, told while requests wait: it stands still when the engine
    does."""
    block_size: int | None = None
    blocks: int | None = None
    """KV blocks of the cache."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that run now."""
    adapters_waiting: frozenset[str] = frozenset()
    adapters_most: int | None = None
    """How many adapters can be loaded at once."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """Fresh readings for some columns; NaN where there is none, which must neither help nor harm an endpoint."""

    queued: NDArray[np.float64]
    running: NDArray[np.float64]
    kv_used: NDArray[np.float64]
    known_queued: NDArray[np.float64]
    """As `queued`, with 0 for what is not known."""
    known_all: NDArray[np.float64]
    """Queued and running requests, with 0 for what is not known."""
    any_queued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What `/status` says of one endpoint's metrics."""

    age_seconds: float | None
    """Since the last reading; None: never read."""
    failures: int
    """Readings that failed since the last one that did not."""
    error: str
    """Why the last reading failed; empty after one that did not."""
    queued: float | None
    running: float | None
    kv_used: float | None


class EngineMetrics:
    """The last reading of each endpoint, and how old it is."""

    def __init__(self, stale_seconds: float) -> None:
        self._stale = stale_seconds
        self._values: NDArray[np.float64] = np.zeros((3, 0))
        self._at: NDArray[np.float64] = np.zeros(0)
        """When anything was told."""
        self._page_at: NDArray[np.float64] = np.zeros(0)
        """When a whole page was read: only it says whether the engine moves."""
        self._moved_at: NDArray[np.float64] = np.zeros(0)
        self._samples: dict[int, EngineSample] = {}
        self._failures: dict[int, tuple[int, str]] = {}
        self._seen: tuple[NDArray[np.intp], float, EngineView] | None = None

    def join(self, column: int, _endpoint: Endpoint) -> None:
        """A new endpoint owns `column`, with nothing read."""
        missing = column + 1 - len(self._at)
        if missing > 0:
            self._values = np.concatenate([self._values, np.full((3, missing), np.nan)], axis=1)
            self._at = np.append(self._at, np.full(missing, -np.inf))
            self._page_at = np.append(self._page_at, np.full(missing, -np.inf))
            self._moved_at = np.append(self._moved_at, np.full(missing, np.inf))
        self.leave(column, _endpoint)

    def leave(self, column: int, _endpoint: Endpoint) -> None:
        """Forget what was read."""
        self._seen = None
        self._values[:, column] = np.nan
        self._at[column] = self._page_at[column] = -np.inf
        self._moved_at[column] = np.inf
        self._samples.pop(column, None)
        self._failures.pop(column, None)

    def note(self, column: int, sample: EngineSample, now: float) -> None:
        """A reading came in."""
        for row, value in enumerate((sample.queued, sample.running, sample.kv_used)):
            self._values[row, column] = np.nan if value is None else value
        self._at[column] = self._page_at[column] = now
        last = self._samples.get(column)
        if last is None or sample.progress is None or sample.progress != last.progress or not sample.queued:
            self._moved_at[column] = now
        self._samples[column] = sample
        self._failures.pop(column, None)

    def note_load(
        self, column: int, *, queued: float | None, kv_used: float | None, now: float, running: float | None = None
    ) -> None:
        """An engine told a part by another way than its metrics page; the rest stays as fresh as it was."""
        if now - self._at[column] > self._stale:
            self._values[:, column] = np.nan
        for row, value in enumerate((queued, running, kv_used)):
            if value is not None:
                self._values[row, column] = value
        self._at[column] = now
        self._seen = None

    def note_failure(self, column: int, error: str) -> None:
        """A reading failed; the last one stays until it is stale."""
        self._failures[column] = (self._failures.get(column, (0, ""))[0] + 1, error)

    def view(self, columns: NDArray[np.intp], now: float) -> EngineView:
        """The readings that are not stale; for the same `columns` object it may be up to 50 ms old."""
        seen = self._seen
        if seen is None or seen[0] is not columns or not 0.0 <= now - seen[1] < _VIEW_SECONDS:
            seen = self._seen = (columns, now, self._look(columns, now))
        return seen[2]

    def _look(self, columns: NDArray[np.intp], now: float) -> EngineView:
        values = self._values[:, columns]
        stale = now - self._at[columns] > self._stale
        if stale.any():
            values[:, stale] = np.nan
        queued, running, kv_used = values
        known = np.nan_to_num(queued)
        return EngineView(queued, running, kv_used, known, known + np.nan_to_num(running), bool(known.any()))

    def sample(self, column: int) -> EngineSample | None:
        """The last reading, however old."""
        return self._samples.get(column)

    def adapters(self) -> frozenset[str]:
        """LoRA adapters that any engine names."""
        return frozenset().union(*(each.adapters | each.adapters_waiting for each in self._samples.values()))

    def read_at(self, columns: NDArray[np.intp]) -> NDArray[np.float64]:
        """When each of `columns` last told of itself; -inf: never."""
        return self._at.take(columns)

    def stale(self, columns: NDArray[np.intp], now: float) -> int:
        """How many of `columns` have no fresh reading."""
        return int((now - self._at[columns] > self._stale).sum())

    def stalled(self, columns: NDArray[np.intp], seconds: float, now: float) -> list[int]:
        """Positions in `columns` whose engine says freshly that work is queued but nothing moves since `seconds`."""
        fresh = now - self._page_at[columns] <= self._stale
        return [int(i) for i in (fresh & (now - self._moved_at[columns] >= seconds)).nonzero()[0]]

    def status(self, column: int, now: float) -> EngineStatus:
        """The section of `/status` for one column."""
        sample = self._samples.get(column)
        failures, error = self._failures.get(column, (0, ""))
        return EngineStatus(
            age_seconds=None if sample is None else now - float(self._at[column]),
            failures=failures,
            error=error,
            queued=sample.queued if sample else None,
            running=sample.running if sample else None,
            kv_used=sample.kv_used if sample else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsStatus:
    """The section of `/status` on engine metrics."""

    stale: int = 0
    """Endpoints without a fresh reading: they are picked by what we know ourselves."""
    interval_seconds: float = 0.0
    """Mean time between two readings of one endpoint."""
    endpoints: Mapping[str, EngineStatus] = field(default_factory=dict)
    """By endpoint name."""
