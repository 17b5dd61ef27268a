"""Takes workers out of the picks that fail again and again, or make no progress with work queued."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.metrics import EngineMetrics
from epp.endpoints.pool import Pool
from epp.scheduling.outcome import Ending, Outcome
from epp.settings import Settings

_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
"""How often stalled workers are looked for."""
_SAYS_NOTHING = (Ending.REFUSED, Ending.UNSEEN)
_PATIENCE_FACTOR, _PATIENCE_SECONDS = 2.0, 1.0
"""A first token is overdue after so many times the predicted time, and so many seconds more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionRules:
    """When a worker is taken out, for how long, and how many at once."""

    failures: int = 5
    """Consecutive failed requests."""
    first_seconds: float = 5.0
    """Time out of the picks; it doubles with each failure after the return."""
    most_seconds: float = 300.0
    most_share: float = 0.5
    """Share of the pool that may be out at once."""
    stalled_seconds: float = 30.0
    """Time without a token, with work queued, after which a worker counts as stalled."""

    @staticmethod
    def of(settings: Settings) -> "EjectionRules":
        """The rules in the settings."""
        return EjectionRules(
            failures=settings.eject_failures,
            first_seconds=settings.eject_seconds,
            most_seconds=max(settings.eject_seconds, settings.eject_most_seconds),
            most_share=settings.eject_share,
            stalled_seconds=settings.stalled_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionStatus:
    """The section of `/status` on workers that are out."""

    failing: tuple[str, ...] = ()
    """Names of endpoints that are out for their errors."""
    stalled: tuple[str, ...] = ()
    """Names of endpoints that make no progress."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    times_out: int = 0
    until: float = 0.0


class Ejection:
    """Hears how requests end. Load and cache of who is out are kept, and when nobody else is left it is picked."""

    def __init__(
        self,
        pool: Pool,
        metrics: EngineMetrics,
        rules: EjectionRules,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._rules = rules
        self._clock = clock
        self._records: dict[HostPort, _Record] = {}
        self._stalled: frozenset[HostPort] = frozenset()
        self._places: frozenset[HostPort] = frozenset()
        self._look_at = 0.0
        self._ejected = Counter(
            "epp_ejections", "Times that a worker was taken out of the picks, by reason.", ["reason"], registry=registry
        )
        pool.on_leave(self._forget)

    @property
    def places(self) -> frozenset[HostPort]:
        """The endpoints to avoid now."""
        now = self._clock()
        if now >= self._look_at:
            self._look(now)
        return self._places

    def ended(self, outcome: Outcome) -> None:
        """Judge the picked endpoint by the end of its request; a client that left soon says nothing about it."""
        if outcome.pick is None or outcome.ending in _SAYS_NOTHING:
            return
        place = outcome.served or outcome.pick.decision.endpoint.host_port
        if (outcome.status or 0) >= 500 or _left_waiting(outcome):
            if place in self._pool.snapshot().position:
                self._failed(place)
        elif outcome.status is not None and not _tokenless(outcome):
            self._records.pop(place, None)

    def status(self) -> EjectionStatus:
        """Who is out now."""
        position, endpoints = self._pool.snapshot().position, self._pool.snapshot().endpoints
        out = {place: endpoints[position[place]].name for place in self.places if place in position}
        return EjectionStatus(
            failing=tuple(name for place, name in out.items() if place not in self._stalled),
            stalled=tuple(name for place, name in out.items() if place in self._stalled),
        )

    def _failed(self, place: HostPort) -> None:
        record, now = self._records.setdefault(place, _Record()), self._clock()
        record.failures += 1
        if record.failures < self._rules.failures or record.until > now or not self._room(now):
            return
        seconds = min(self._rules.first_seconds * 2.0**record.times_out, self._rules.most_seconds)
        record.until = now + seconds
        record.times_out += 1
        record.failures = self._rules.failures - 1  # back on trial: the next failure ejects again
        self._ejected.labels("failing").inc()
        _log.warning("worker fails; not picked for a while", endpoint=place, seconds=seconds)
        self._look(now)

    def _room(self, now: float) -> bool:
        """Whether one more may be out."""
        out = sum(1 for record in self._records.values() if record.until > now) + len(self._stalled)
        return out + 1 <= self._rules.most_share * len(self._pool.snapshot().endpoints)

    def _look(self, now: float) -> None:
        failing = {place: record.until for place, record in self._records.items() if record.until > now}
        snapshot = self._pool.snapshot()
        columns = self._metrics.stalled(snapshot.columns, self._rules.stalled_seconds, now)
        stalled = frozenset(snapshot.endpoints[i].host_port for i in columns)
        if len({*stalled, *failing}) > self._rules.most_share * len(snapshot.endpoints):
            stalled = frozenset()  # what ails so many is not the workers
        for place in stalled - self._stalled:
            self._ejected.labels("stalled").inc()
            _log.warning("worker makes no progress with work queued; not picked", endpoint=place)
        self._stalled = stalled
        self._places = frozenset(failing) | stalled
        self._look_at = min([now + _LOOK_SECONDS, *failing.values()])

    def _forget(self, _column: int, endpoint: Endpoint) -> None:
        self._records.pop(endpoint.host_port, None)
        self._look_at = 0.0


def _tokenless(outcome: Outcome) -> bool:
    """Whether a stream broke off that would have shown its first token."""
    shown = outcome.pick is not None and outcome.pick.reservation.work.shown
    return shown and outcome.ending is Ending.ABORTED and outcome.time_to_first_token is None


def _left_waiting(outcome: Outcome) -> bool:
    """Whether no first token had come long after it was due."""
    assert outcome.pick is not None
    due = _PATIENCE_FACTOR * outcome.pick.decision.predicted_ttft + _PATIENCE_SECONDS
    return _tokenless(outcome) and outcome.seconds > due
