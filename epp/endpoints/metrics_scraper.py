"""Reads every engine's metrics, as often as the CPU budget and the engines allow."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from epp.endpoints.answer_time import AnswerTime
from epp.endpoints.endpoint import Endpoint, host_port
from epp.endpoints.metrics import EngineMetrics, EngineSample, MetricsStatus
from epp.endpoints.metrics_client import PageConnection
from epp.endpoints.metrics_page import PageReader, metrics_path
from epp.endpoints.pool import Pool
from epp.settings import Settings

_log = structlog.get_logger(__name__)

_CONNECTING_AT_ONCE = 32
_TOGETHER_SECONDS = 0.06
"""Pages that fall due within this time are asked for together: waking up costs as much as reading one."""
_ENGINE_SHARE = 0.1
"""An engine that takes long to answer is asked so seldom that it answers for at most this share of the time,"""
_ENGINE_PAUSE = 5.0
"""but at least this often, in seconds."""
_SETTLE = 1.5
"""An endpoint whose readings do not change is asked this many times less often from one reading to the next."""
_SILENCE_SECONDS = 0.6
"""An engine that answered before and now leaves us without an answer for so long looks dead, unless it usually takes a
good part of that time."""
_LOOK_SECONDS = 0.1
"""How often we look for such engines."""
_SMOOTHING = 0.05
_OVERHEAD = 1.5
"""CPU of one reading over what is measured: the event loop's and the kernel's part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeRules:
    """How often, and at what cost."""

    least_seconds: float = 0.2
    """Shortest time between two readings of one endpoint."""
    most_seconds: float = 1.8
    """Longest time between two readings of one endpoint, if the budget allows."""
    timeout_seconds: float = 1.0
    cpu_budget: float = 0.03
    """Share of a core that reading may cost."""

    @staticmethod
    def of(settings: Settings) -> "ScrapeRules":
        """The rules in the settings."""
        return ScrapeRules(
            least_seconds=settings.metrics_least_seconds,
            most_seconds=max(settings.metrics_least_seconds, settings.metrics_most_seconds),
            timeout_seconds=settings.metrics_timeout_seconds,
            cpu_budget=settings.metrics_cpu_budget,
        )


class _Target:
    """One endpoint's page and the connection to it."""

    def __init__(self, column: int, endpoint: Endpoint, told: Callable[["_Target", bytes | None, str], None]) -> None:
        self.column = column
        self.endpoint = endpoint
        self.gone = False
        self.interval = 0.0
        self.asked_at = 0.0
        self.last: tuple[float | None, ...] = ()
        self.failing = False
        self.answer_time = AnswerTime()
        self.doubted = False
        """Whether its present silence was told."""
        self.connecting: asyncio.Task[None] | None = None
        self.port = endpoint.metrics_port or endpoint.port
        self.pages = PageReader(endpoint.engine, endpoint.rank if endpoint.rank_by_header else None)
        self._told = told
        self.connection = self.make()

    def make(self) -> PageConnection:
        host = host_port(self.endpoint.address, self.port)
        return PageConnection(
            metrics_path(self.endpoint.engine), host, lambda page, error: self._told(self, page, error)
        )

    def silent(self, now: float) -> bool:
        """Whether an answer is overdue from an engine that answered before."""
        patience = self.answer_time.patience(_SILENCE_SECONDS)
        return bool(self.last) and self.connection.waiting and now - self.asked_at > patience

    def close(self) -> None:
        self.gone = True
        if self.connecting is not None:
            self.connecting.cancel()
        self.connection.close()


class MetricsScraper:
    """One loop for all endpoints: it sleeps until the next page is due, asks, and lets the answers come.

    Whoever owns `metrics` tells it which endpoints join and leave.
    """

    def __init__(
        self,
        pool: Pool,
        metrics: EngineMetrics,
        rules: ScrapeRules,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_loss: Callable[[Endpoint], None] = lambda _endpoint: None
        """Called when an endpoint whose metrics could be read cannot be read any more, or is silent when asked."""
        self._pool = pool
        self._metrics = metrics
        self._rules = rules
        self._clock = clock
        self._targets: dict[int, _Target] = {}
        self._asked: set[_Target] = set()
        """Those that owe an answer."""
        self._due: list[tuple[float, int, _Target]] = []
        self._turn = 0
        self._draw = random.Random()  # noqa: S311 - only spreads the readings in time
        self._cost = 0.0005
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._connecting = 0
        self._readings = Counter(
            "epp_engine_metrics_readings", "Readings of engine metrics, by result.", ["result"], registry=registry
        )
        Gauge(
            "epp_stale_endpoints",
            "Endpoints without fresh engine metrics: they are picked by what the EPP knows itself.",
            registry=registry,
        ).set_function(lambda: metrics.stale(pool.snapshot().columns, clock()))

    async def start(self) -> None:
        """Follow the pool and begin to read."""
        snapshot = self._pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            self._join(column, endpoint)
        self._pool.on_join(self._join)
        self._pool.on_leave(self._leave)
        self._tasks = [
            asyncio.create_task(self._run(), name="engine metrics"),
            asyncio.create_task(self._look_for_silence(), name="silent engines"),
        ]

    async def stop(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for target in self._targets.values():
            target.close()

    def status(self) -> MetricsStatus:
        """What `/status` says."""
        now, snapshot = self._clock(), self._pool.snapshot()
        intervals = [target.interval for target in self._targets.values()]
        return MetricsStatus(
            stale=self._metrics.stale(snapshot.columns, now),
            interval_seconds=sum(intervals) / len(intervals) if intervals else 0.0,
            endpoints={
                endpoint.name: self._metrics.status(column, now)
                for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True)
            },
        )

    def _join(self, column: int, endpoint: Endpoint) -> None:
        target = _Target(column, endpoint, self._told)
        target.interval = self._rules.least_seconds
        self._targets[column] = target
        self._schedule(target, self._clock())
        self._wake.set()

    def _leave(self, column: int, _endpoint: Endpoint) -> None:
        self._targets.pop(column).close()

    def _schedule(self, target: _Target, at: float) -> None:
        self._turn += 1
        heappush(self._due, (at, self._turn, target))

    async def _run(self) -> None:
        while True:
            now = self._clock()
            while self._due and self._due[0][0] <= now:
                self._visit(heappop(self._due)[2], now)
            self._wake.clear()
            pause = self._due[0][0] - now if self._due else 3600.0
            try:
                async with asyncio.timeout(max(pause, _TOGETHER_SECONDS)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look_for_silence(self) -> None:
        """A node that died closes no connection: who does not answer is told before the reading has failed."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(0)  # where we were held up ourselves, answers that are here have their turn first
            await asyncio.sleep(0)
            now = self._clock()
            for target in list(self._asked):
                if not target.doubted and target.silent(now):
                    target.doubted = True
                    self.on_loss(target.endpoint)

    def _visit(self, target: _Target, now: float) -> None:
        """Ask for one page, or see that the last answer did not come in time."""
        if target.gone:
            return
        if target.connection.waiting:
            if now - target.asked_at < self._rules.timeout_seconds:
                self._schedule(target, target.asked_at + self._rules.timeout_seconds)
                return
            target.connection.close("no answer in time")
        self._schedule(target, now + self._pace(target))
        if target.connection.open:
            self._ask(target, now)
        elif target.connecting is None and self._connecting < _CONNECTING_AT_ONCE:
            self._connecting += 1
            target.connecting = asyncio.create_task(self._connect(target))

    def _pace(self, target: _Target) -> float:
        """Seconds until the endpoint's next reading."""
        affordable = len(self._targets) * self._cost / self._rules.cpu_budget
        # Not all at the same moment, for our sake and for the engines'.
        return max(target.interval, affordable) * self._draw.uniform(0.9, 1.0)

    async def _connect(self, target: _Target) -> None:
        connection, address = target.make(), target.endpoint.address
        try:
            async with asyncio.timeout(self._rules.timeout_seconds):
                await asyncio.get_running_loop().create_connection(lambda: connection, address, target.port)
        except (OSError, TimeoutError) as error:
            self._told(target, None, f"cannot connect: {error}" if str(error) else "cannot connect in time")
            return
        finally:
            self._connecting -= 1
            target.connecting = None
        if target.gone:
            connection.close()
            return
        target.connection = connection
        self._ask(target, self._clock())

    def _ask(self, target: _Target, now: float) -> None:
        self._asked.add(target)
        target.asked_at = now
        target.connection.ask()

    def _told(self, target: _Target, page: bytes | None, error: str) -> None:
        self._asked.discard(target)
        if target.gone:
            return
        if page is None:
            self._failed(target, error)
            return
        begun, now = time.thread_time(), self._clock()
        sample = target.pages.read(page)
        if sample.queued is None and sample.running is None and sample.kv_used is None:
            self._failed(target, "the page holds none of the engine's metrics")
            return
        self._metrics.note(target.column, sample, now)
        self._readings.labels("ok").inc()
        if target.failing:
            target.failing = False
            _log.info("engine metrics are back", endpoint=target.endpoint.name)
        target.doubted = False
        target.answer_time.note(now - target.asked_at)
        self._settle(target, sample, now - target.asked_at)
        spent = _OVERHEAD * (time.thread_time() - begun) + 0.0002
        self._cost += _SMOOTHING * (spent - self._cost)

    def _settle(self, target: _Target, sample: EngineSample, answer_seconds: float) -> None:
        rules = self._rules
        load = (sample.queued, sample.running, sample.kv_used)
        changed = load != target.last
        target.last = load
        slower = target.interval * _SETTLE
        interval = rules.least_seconds if changed else min(slower, rules.most_seconds)
        target.interval = max(interval, min(answer_seconds / _ENGINE_SHARE, _ENGINE_PAUSE))

    def _failed(self, target: _Target, error: str) -> None:
        self._metrics.note_failure(target.column, error)
        self._readings.labels("failed").inc()
        target.interval = self._rules.most_seconds
        if not target.failing:
            target.failing = True
            if target.last:
                self.on_loss(target.endpoint)
            _log.warning("engine metrics cannot be read", endpoint=target.endpoint.name, error=error)
