"""The liveness of something that endpoints are learnt from."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """What `/status` says of one source."""

    name: str
    listed: bool
    """Whether a first full answer came."""
    seconds_since_seen: float | None
    """Since anything came from it; None: never."""
    failures: int
    error: str
    """Why it does not answer now; empty when it does."""


class SourceMetrics:
    """Counters and gauges of all sources of endpoints."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failures = Counter(
            "epp_discovery_failures",
            "Reads of a source of endpoints that failed; each is retried.",
            ["source"],
            registry=registry,
        )
        self.seconds_since_seen = Gauge(
            "epp_discovery_seconds_since_seen",
            "Seconds since a source of endpoints last said anything, bookmarks included.",
            ["source"],
            registry=registry,
        )


class Source:
    """Keeps account of one source; a failure is logged when it begins, changes or ends, not at every retry."""

    def __init__(self, name: str, metrics: SourceMetrics | None = None, *, optional: bool = False) -> None:
        self.name = name
        self.optional = optional
        """Whether the cluster may do without it."""
        self.listed = False
        self.failures = 0
        self.error = ""
        self._seen: float | None = None
        self._failed = metrics.failures.labels(name) if metrics else None
        if metrics:
            metrics.seconds_since_seen.labels(name).set_function(lambda: self.seconds_since_seen() or 0.0)

    def seen(self, *, objects: int | None = None) -> None:
        """Something came; with `objects`, a full list."""
        self._seen = monotonic()
        if objects is not None:
            if self.error:
                _log.info("source of endpoints answers again", source=self.name, objects=objects)
            elif not self.listed:
                _log.info("source of endpoints listed", source=self.name, objects=objects)
            self.listed = True
            self.error = ""

    def failed(self, error: str) -> None:
        """A read failed; it will be tried again."""
        self.failures += 1
        if self._failed:
            self._failed.inc()
        if error != self.error:
            _log.warning("source of endpoints fails; its last state is kept", source=self.name, error=error)
        self.error = error

    def absent(self) -> None:
        """The cluster does not have it, which is fine."""
        if not self.error:
            _log.info("not installed in this cluster; looked for now and then", source=self.name)
        self.error = "not installed"

    def seconds_since_seen(self) -> float | None:
        """Since anything came; None: never."""
        return None if self._seen is None else monotonic() - self._seen

    def status(self) -> SourceStatus:
        """The section for `/status`."""
        return SourceStatus(
            name=self.name,
            listed=self.listed,
            seconds_since_seen=self.seconds_since_seen(),
            failures=self.failures,
            error=self.error,
        )


async def keep_running(run: Callable[[], Awaitable[None]], source: Source, *, pause_seconds: float = 5.0) -> None:
    """Run for ever what never ends by itself: a fault of ours must not freeze the pool without a word."""
    while True:
        try:
            await run()
        except Exception:  # noqa: BLE001 - logged with its traceback, counted, and begun anew
            _log.exception("internal fault in a source of endpoints; it begins anew", source=source.name)
            source.failed("internal fault; see the log")
        await asyncio.sleep(pause_seconds)
