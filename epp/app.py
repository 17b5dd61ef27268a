"""The composition root: the only place that knows all parts. Start, ready, drain, stop."""

import asyncio
import gc
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry

from epp import __version__
from epp.admin.metrics import MetricsServer
from epp.admin.server import AdminServer
from epp.admin.shadow_command import show
from epp.admin.status import ProcessStatus, Status
from epp.endpoints.discovery import Discovery
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.kubernetes.client import NoClusterError
from epp.endpoints.metrics import EngineMetrics
from epp.endpoints.metrics_scraper import MetricsScraper, ScrapeRules
from epp.endpoints.pool import Pool
from epp.endpoints.status import pool_status
from epp.endpoints.suspects import Suspects
from epp.extproc.model_list import ModelList
from epp.extproc.retries import Retries
from epp.extproc.rules import ExchangeRules
from epp.extproc.servicer import Servicer
from epp.extproc.spectator import Spectator
from epp.extproc.transport.choice import transport_for
from epp.extproc.transport.health import Health, HealthServer
from epp.kvcache.checkpoint import checkpoint_from
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.metrics import KvMetrics
from epp.peers.addresses import Processes
from epp.peers.notices import Notices
from epp.peers.prompts import PromptExchange
from epp.peers.sharing import LoadSharing
from epp.peers.status import PeersStatus
from epp.peers.warm_start import WarmStart
from epp.prompts.prompt import Prompt
from epp.prompts.reader import PromptReader
from epp.scheduling.cache_reports import CacheReports
from epp.scheduling.comparison import Comparison
from epp.scheduling.config_watch import ConfigWatch
from epp.scheduling.ejection import Ejection, EjectionRules
from epp.scheduling.estimates import Estimates
from epp.scheduling.explain import Recorded
from epp.scheduling.explain_header import explain_header_from
from epp.scheduling.fidelity import Fidelity
from epp.scheduling.load_reports import LoadReports
from epp.scheduling.models import Models
from epp.scheduling.policies import Policies, disaggregation_from, policies_from
from epp.scheduling.policy import Policy
from epp.scheduling.pushed_load import PushedLoad
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.sessions import Sessions
from epp.scheduling.shadow import Shadowed, ShadowMetrics
from epp.scheduling.suspicion import Suspicion
from epp.scheduling.vigil import Vigil
from epp.settings import PREFIX, Explain, Settings
from epp.telemetry.logs import configure_logs

_log = structlog.get_logger(__name__)

_Started = TypeVar("_Started")


def serve(
    settings: Settings, processes: Processes | None = None, on_ready: Callable[[bool], None] = lambda _ready: None
) -> int:
    """Run the EPP until SIGTERM or SIGINT; the exit code of `epp serve`.

    `processes` says which of several processes this one is; `on_ready` hears when it gets ready, and when it drains.
    Raises SettingsError for settings that cannot work together.
    """
    configure_logs(settings.log_level)
    app = App(settings, processes)
    app.on_ready = on_ready
    return _run(app)


def shadow(settings: Settings, *, as_json: bool) -> int:
    """Listen beside another picker until SIGTERM or SIGINT, then print the report; the exit code of `epp shadow`.

    Raises SettingsError for settings that cannot work together.
    """
    configure_logs(settings.log_level)
    app = App(settings, shadow=True)
    code = _run(app)
    if code == 0 and app.comparison is not None:
        show(app.comparison.report(), as_json=as_json)
    return code


def _run(app: "App") -> int:
    _allow_all_files()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(app.run())
    except CouldNotStartError as error:
        _log.error("could not start", reason=str(error))
        return 3
    return 0


class CouldNotStartError(Exception):
    """A port or another thing outside of the settings is missing."""


class App:
    """All parts of one EPP process."""

    def __init__(self, settings: Settings, processes: Processes | None = None, *, shadow: bool = False) -> None:
        """`processes` says which of several processes this one is.

        `shadow`: listen to traffic that somebody else places, and answer nothing.
        """
        self._settings = settings
        self._processes = processes or Processes()
        self.on_ready: Callable[[bool], None] = lambda _ready: None
        self._started = time.monotonic()
        self._ready = False
        self.registry = CollectorRegistry()
        self.pool = Pool()
        self.knowledge = KvKnowledge.from_settings(settings, self.pool)
        KvMetrics(self.knowledge, self.registry)
        self.prompts = PromptExchange.of(self.knowledge, self.pool, settings)
        self.checkpoint = checkpoint_from(settings, self.knowledge)
        self.reader = PromptReader.from_settings(settings, self.registry, workers=self._worker_urls)
        self.knowledge.on_adapter(self.reader.models.learn_adapter)
        self.engine_metrics = EngineMetrics(settings.metrics_stale_seconds)
        self.knowledge.learn_shape_from(self.engine_metrics.sample)
        self.suspects = Suspects(self.pool, self.registry)
        self.knowledge.on_disconnect(self.suspects.suspect)
        self.shadow_metrics = ShadowMetrics(self.registry)
        self.sessions, self.retries = Sessions(), Retries()
        policies = policies_from(settings, self.sessions)
        share = settings.explain_sample if settings.explain is Explain.LOG else 0.0
        self.decisions = Recorded(self._shadowed(policies), settings.explain_keep, log_share=share)
        self.disaggregation = disaggregation_from(settings, policies.prefill, self.registry)
        self.models = Models(settings, self._rewrite, self.engine_metrics.adapters)
        self.reader.rewrite = self.models.serving
        self.ejection = Ejection(self.pool, self.engine_metrics, EjectionRules.of(settings), self.registry)
        self.scheduler = Scheduler(
            pool=self.pool,
            index=self.prompts.others,
            picked=self._picked,
            confidence=self.knowledge.confidence,
            policy=self.decisions,
            metrics=self.engine_metrics,
            fallbacks=settings.fallbacks,
            suspended=lambda: self.suspects.places | self.ejection.places,
            slow_start_seconds=settings.slow_start_seconds,
            models=self.models,
            disaggregation=self.disaggregation,
        )
        self.sharing = self._sharing() if not shadow else None  # what a spectator would have picked is no load
        self.warm_start: WarmStart | None = None
        if self.sharing is not None and settings.warmup_timeout_seconds:
            self.warm_start = WarmStart(
                self.sharing, self.knowledge, self.scheduler.rates, max_blocks=settings.kv_index_max_blocks
            )
            self.knowledge.hold()
        self.config_watch = ConfigWatch(settings, self._take_policies, sessions=self.sessions)
        self.scraper = MetricsScraper(self.pool, self.engine_metrics, ScrapeRules.of(settings), self.registry)
        self.scraper.on_loss = self.suspects.suspect
        self.vigil = Vigil(
            self.pool,
            self.scheduler.load,
            self.engine_metrics,
            self.suspects.suspect,
            self.registry,
            per_second=settings.signs_of_life_per_second,
        )
        ask_seconds = settings.kv_discover_seconds if settings.kv_discover else None
        self.pushed_load = PushedLoad(self.pool, self.engine_metrics, time.monotonic, ask_seconds=ask_seconds)
        self.fidelity = Fidelity(self.pool, self.registry, self.knowledge.evidence)
        self.estimates = Estimates(self.scheduler.load, self.registry)
        self.comparison = Comparison(self.registry) if shadow else None
        self.servicer = self._servicer() if self.comparison is None else self._spectator(self.comparison)
        self.health = Health()
        self.transport = transport_for(
            settings,
            self.servicer.serve,
            health=self.health,
            registry=self.registry,
            shared=self._processes.folder is not None,
        )
        self.discovery = Discovery(settings, self.pool, self.registry)

    async def run(self) -> None:
        """Serve until a signal says to stop, then drain. Raises CouldNotStartError."""
        stop = stop_signals()
        async with AsyncExitStack() as parts:
            await self._start(parts)
            becoming_ready = asyncio.create_task(self._become_ready(parts), name="become ready")
            becoming_ready.add_done_callback(lambda task: stop.set() if _has_failed(task) else None)
            await stop.wait()
            if _has_failed(becoming_ready):
                await becoming_ready
            becoming_ready.cancel()
            stop.clear()
            await self._drain(stop)

    def _sharing(self) -> LoadSharing | None:
        notices = Notices(hear_session=self._session_heard, hear_failed=self._failure_heard)
        sharing = LoadSharing.from_settings(
            self._settings,
            self.scheduler.load,
            self.pool,
            self._processes,
            self.registry,
            prompts=self.prompts,
            notices=notices,
        )
        if sharing is not None:
            self.sessions.on_bind, self.retries.on_failed = notices.bound, notices.failed
        if sharing is not None and sharing.prefix_secret is not None:
            self.knowledge.take_secret(sharing.prefix_secret)
        return sharing

    def _session_heard(self, session: int, endpoint: Endpoint) -> None:
        self.sessions.heard(session, endpoint, time.monotonic())

    def _failure_heard(self, request: int, endpoint: Endpoint) -> None:
        self.retries.heard(request, endpoint, time.monotonic())

    def _picked(self, column: int, prompt: Prompt) -> None:
        """A pick sent `prompt` to the endpoint of `column`: equal ones will find it there, whoever picks."""
        self.knowledge.picked(column, prompt)
        if self.sharing is not None:
            self.sharing.group.picked(column, prompt)

    def _servicer(self) -> Servicer:
        return Servicer(
            reader=self.reader,
            scheduler=self.scheduler,
            rules=ExchangeRules.of(self._settings),
            observers=(
                self.fidelity,
                CacheReports(self.knowledge.reported),
                LoadReports(self.engine_metrics, time.monotonic),
                Suspicion(self.suspects),
                self.vigil,
                self.ejection,
                self.estimates,
            ),
            registry=self.registry,
            explain=explain_header_from(self._settings, self.decisions.newest),
            model_list=ModelList(self.models.names) if self._settings.answer_models else None,
            retries=self.retries,
        )

    def _spectator(self, comparison: Comparison) -> Spectator:
        return Spectator(
            reader=self.reader,
            scheduler=self.scheduler,
            comparison=comparison,
            rules=ExchangeRules.of(self._settings),
            observers=(self.fidelity, CacheReports(self.knowledge.reported), self.ejection),
        )

    def _worker_urls(self) -> list[str]:
        """Where each worker serves its API."""
        return [f"http://{endpoint.host_port}" for endpoint in self.pool.snapshot().endpoints]

    def _shadowed(self, policies: Policies) -> Policy:
        """The policy that decides, with the one beside it if there is one."""
        if policies.shadow is None:
            return policies.decode
        return Shadowed(policies.decode, policies.shadow, self.shadow_metrics)

    def _take_policies(self, policies: Policies) -> None:
        """A changed EPP_CONFIG_FILE comes into force."""
        self.decisions.policy = self._shadowed(policies)
        self.disaggregation.policy = policies.prefill

    def _rewrite(self, model: str, number: float) -> str | None:
        policies = self.discovery.policies
        return policies.rewrites.target(model, number) if policies is not None else None

    def status(self) -> Status:
        """What `/status` says now."""
        return Status(
            process=ProcessStatus(
                version=__version__,
                uptime_seconds=time.monotonic() - self._started,
                ready=self._ready,
                waiting_for=self.discovery.waiting_for(),
            ),
            discovery=self.discovery.status(),
            pool=pool_status(self.pool),
            engine_metrics=self.scraper.status(),
            suspects=self.suspects.status(),
            ejection=self.ejection.status(),
            exchanges=self.servicer.status(),
            load=self.estimates.status(),
            carrier=self.transport.status(),
            prompts=self.reader.status(),
            kv=self.knowledge.status(),
            checkpoint=self.checkpoint.status() if self.checkpoint is not None else None,
            fidelity=self.fidelity.status(),
            comparison=self.comparison.report() if self.comparison is not None else None,
            settings=_in_force(self._settings),
            peers=self._peers(),
        )

    def _peers(self) -> PeersStatus:
        if self.sharing is None:
            return PeersStatus()
        status = self.sharing.status()
        return status if self.warm_start is None else replace(status, warm_start=self.warm_start.status())

    async def _start(self, parts: AsyncExitStack) -> None:
        """Start every part; those that others need come first, and all stop in the opposite order."""
        settings = self._settings
        parts.push_async_callback(self.reader.stop)
        self.reader.start()
        face = self._processes.face
        metrics = MetricsServer(self.registry, host=settings.host, port=settings.metrics_port, path=face("metrics"))
        admin = AdminServer(
            self.status,
            self.decisions.records,
            host=settings.admin_host,
            port=settings.admin_port,
            path=face("admin"),
        )
        await listen("EPP_KV_BIND_PORT", self.knowledge.start(), self.knowledge.stop, parts)
        if self.checkpoint is not None:
            await self.checkpoint.start()
            parts.push_async_callback(self.checkpoint.stop)
        try:
            await self.discovery.start()
        except NoClusterError as error:
            raise CouldNotStartError(str(error)) from None
        parts.push_async_callback(self.discovery.stop)
        if self.sharing is not None:
            await listen("EPP_PEER_PORT", self.sharing.start(), self.sharing.stop, parts)
        if self.warm_start is not None:
            await listen("EPP_PEER_PORT", self.warm_start.start(), self.warm_start.stop, parts)
        await self.config_watch.start()
        parts.push_async_callback(self.config_watch.stop)
        if settings.engine_metrics:
            await self.scraper.start()
            parts.push_async_callback(self.scraper.stop)
        if settings.signs_of_life_per_second and self.comparison is None:
            await self.vigil.start()
            parts.push_async_callback(self.vigil.stop)
        if settings.pushed_load:
            await self.pushed_load.start()
            parts.push_async_callback(self.pushed_load.stop)
        parts.push_async_callback(self.suspects.stop)
        await listen("EPP_METRICS_PORT", metrics.start(), metrics.stop, parts)
        await listen("EPP_ADMIN_PORT", admin.start(), admin.stop, parts)
        if self._processes.folder is not None:
            return  # the parent answers for all; requests come when this one is ready
        health = HealthServer(self.health, host=settings.host, port=settings.health_port)
        health_port = await listen("EPP_HEALTH_PORT", health.start(), health.stop, parts)
        grpc_port = await listen("EPP_GRPC_PORT", self.transport.start(), self.transport.stop, parts)
        # Port 0 takes a free one: this line is how a parent process learns which.
        _log.info(
            "listening",
            grpc_port=grpc_port,
            tls=settings.secure_serving,
            health_port=health_port,
            metrics_port=metrics.port,
            admin_port=admin.port,
        )

    async def _become_ready(self, parts: AsyncExitStack) -> None:
        await self.discovery.synced()
        if self.warm_start is not None:
            await self.warm_start.run(self._settings.warmup_timeout_seconds)
            self.warm_start.warm = True
        if self._processes.folder is not None:
            await listen("EPP_GRPC_PORT", self.transport.start(), self.transport.stop, parts)
        _keep_for_good()
        await self._set_ready(True)

    async def _set_ready(self, ready: bool) -> None:
        self._ready = ready
        await self.health.set_ready(ready)
        self.on_ready(ready)
        _log.info("ready" if ready else "not ready", endpoints=len(self.pool.snapshot().endpoints))

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Let running streams finish; a second signal ends at once."""
        await self._set_ready(False)
        drained = asyncio.create_task(self._finish_streams(), name="drain")
        hurried = asyncio.create_task(hurry.wait(), name="second signal")
        await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, hurried):
            task.cancel()
        await asyncio.gather(drained, hurried, return_exceptions=True)
        _log.info("stopped", open_streams=self.servicer.status().open)

    async def _finish_streams(self) -> None:
        await asyncio.sleep(self._settings.drain_delay_seconds)
        await self.transport.drain(self._settings.drain_timeout_seconds)


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def listen(
    setting: str, start: Awaitable[_Started], stop: Callable[[], Awaitable[None]], parts: AsyncExitStack
) -> _Started:
    """Start what listens; it stops with `parts`. Raises CouldNotStartError with the name of the setting."""
    try:
        started = await start
    except (OSError, RuntimeError) as error:
        raise CouldNotStartError(f"{setting}: {error}") from None
    parts.push_async_callback(stop)
    return started


def stop_signals() -> asyncio.Event:
    """Set by each SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _in_force(settings: Settings) -> dict[str, str]:
    return {PREFIX + name.upper(): str(value) for name, value in settings if value is not None}


def _keep_for_good() -> None:
    """Spare the garbage collector what lives as long as the process: its full passes would hold up requests."""
    gc.collect()
    gc.freeze()


def _allow_all_files() -> None:
    """As many open files as the system lets us have: each worker's event stream takes about five."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: 5 to 20 % less CPU per request under grpc.aio."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
