"""From settings to a pool that is kept up to date."""

import asyncio
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Role
from epp.endpoints.feed import Changed, Feed
from epp.endpoints.file_feed import FileFeed
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.cluster import Cluster, Defaults
from epp.endpoints.kubernetes.inference_pool import MAX_PORT, MAX_PORTS, VERSIONS, PoolSpec
from epp.endpoints.kubernetes.namespace import own_namespace
from epp.endpoints.kubernetes.pod_source import SelectorFeed
from epp.endpoints.kubernetes.policy_feed import PolicyFeed
from epp.endpoints.kubernetes.pool_feed import PoolFeed
from epp.endpoints.kubernetes.slice_feed import SliceFeed
from epp.endpoints.kubernetes.watch import Timing
from epp.endpoints.membership import Membership
from epp.endpoints.pool import Pool
from epp.endpoints.source import Source, SourceMetrics, SourceStatus, keep_running
from epp.endpoints.static_feed import StaticFeed, static_endpoints
from epp.settings import EndpointsSettings, SettingsError

_log = structlog.get_logger()

LOOK_SECONDS = 0.0625
SAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryStatus:
    """Where endpoints come from, and what is missing before the first pick."""

    sources: tuple[SourceStatus, ...]
    waiting_for: tuple[str, ...]


class Discovery:
    """Keeps the pool equal to what the chosen source says.

    Raises SettingsError when the settings name no source, several, or one that cannot be read.
    """

    def __init__(
        self,
        settings: EndpointsSettings,
        pool: Pool,
        registry: CollectorRegistry,
        client: KubernetesClient | None = None,
    ) -> None:
        self.policies: PolicyFeed | None = None
        """Priorities and model rewrites; None: not asked for."""
        self._pool = pool
        self._membership = Membership(pool, most=settings.max_endpoints)
        metrics = SourceMetrics(registry)
        self._client: KubernetesClient | None = None
        kind = _chosen(settings)
        if kind == "EPP_ENDPOINTS_FILE" and settings.endpoints_file:
            look = settings.endpoints_file_seconds
            changed = self._membership.changed
            self._feeds: list[Feed] = [
                FileFeed(settings.endpoints_file, look_seconds=look, changed=changed, metrics=metrics)
            ]
        elif kind == "EPP_ENDPOINTS" and settings.endpoints:
            self._feeds = [StaticFeed(static_endpoints(settings.endpoints))]
        else:
            self._client = client or KubernetesClient()
            cluster = _cluster(settings, self._client, self._membership.changed, metrics)
            self._feeds = _kubernetes_feeds(settings, cluster)
            if settings.pool_name and settings.inference_policies:
                self.policies = PolicyFeed(cluster, settings.pool_name)
        for feed in self._feeds:
            self._membership.add_source(feed)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to follow the source. Raises NoClusterError when it is Kubernetes and no API server is known."""
        if self._client:
            await self._client.open()
        self._membership.apply()
        for feed in self._feeds:
            name = feed.sources[0].name if feed.sources else "static"
            run = keep_running(feed.run, feed.sources[0] if feed.sources else Source(name))
            self._tasks.append(asyncio.create_task(run, name=f"discovery {name}"))
        if self.policies:
            self._tasks.append(asyncio.create_task(self.policies.run(), name="discovery policies"))

    async def stop(self) -> None:
        """Follow it no longer; the pool stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._client:
            await self._client.close()

    def waiting_for(self) -> tuple[str, ...]:
        """What is missing before the pool is what the source says, in words; empty when nothing is.

        A pool without ready endpoints lacks nothing: the answer to requests is then 503.
        """
        missing = tuple(problem for feed in self._feeds if (problem := feed.problem()))
        return missing or tuple(f"the first list from {source.name}" for source in self._sources() if not source.listed)

    async def synced(self) -> None:
        """Return when nothing is missing; say now and then what is."""
        waited = 0.0
        while missing := self.waiting_for():
            if waited % SAY_SECONDS == 0.0:
                _log.info("waiting for endpoints", missing=missing)
            await asyncio.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
        self._membership.settle()

    def status(self) -> DiscoveryStatus:
        """The section for `/status`."""
        policies = self.policies.sources if self.policies else ()
        sources = tuple(source.status() for source in (*self._sources(), *policies))
        return DiscoveryStatus(sources=sources, waiting_for=self.waiting_for())

    def _sources(self) -> list[Source]:
        return [source for feed in self._feeds for source in feed.sources]


def _chosen(settings: EndpointsSettings) -> str:
    """The variable that names the source of endpoints."""
    sources = {
        "EPP_POOL_NAME": settings.pool_name,
        "EPP_POD_SELECTOR": settings.pod_selector,
        "EPP_SERVICE_NAME": settings.service_name,
        "EPP_ENDPOINTS_FILE": settings.endpoints_file,
        "EPP_ENDPOINTS": settings.endpoints,
    }
    chosen = [name for name, value in sources.items() if value]
    if len(chosen) != 1:
        found = f"{' and '.join(chosen)} are set" if chosen else "none is set"
        raise SettingsError(f"expected exactly one of {', '.join(sources)} to say where endpoints come from; {found}")
    if settings.pool_group not in (None, *(group for group, _ in VERSIONS)):
        known = ", ".join(group for group, _ in VERSIONS)
        raise SettingsError(f"EPP_POOL_GROUP={settings.pool_group!r}: expected one of {known}")
    if settings.inference_policies and not settings.pool_name:
        raise SettingsError("EPP_INFERENCE_POLICIES: expected EPP_POOL_NAME, the pool that they refer to")
    if settings.prefill_pool_name and not settings.pool_name:
        raise SettingsError("EPP_PREFILL_POOL_NAME: expected EPP_POOL_NAME beside it, for the decode pool")
    return chosen[0]


def _cluster(
    settings: EndpointsSettings, client: KubernetesClient, changed: Changed, metrics: SourceMetrics
) -> Cluster:
    timing = Timing(
        watch=settings.kube_watch_seconds,
        watch_silence=settings.kube_silence_seconds,
        longest_pause=settings.kube_retry_seconds,
        absent_pause=settings.kube_retry_seconds * 6,
    )
    namespace = settings.namespace or own_namespace()
    return Cluster(client=client, namespace=namespace, timing=timing, changed=changed, metrics=metrics)


def _kubernetes_feeds(settings: EndpointsSettings, cluster: Cluster) -> list[Feed]:
    defaults = _defaults(settings)
    if settings.service_name:
        ports = tuple(part.strip() for part in (settings.target_ports or "").split(",") if part.strip())
        return [SliceFeed(cluster, defaults, settings.service_name, ports)]
    if settings.pod_selector:
        return [
            SelectorFeed(cluster, defaults, PoolSpec(_labels(settings.pod_selector), _ports(settings.target_ports)))
        ]
    feeds: list[Feed] = []
    if settings.prefill_pool_name:
        prefill = _defaults(settings, frozenset({Role.PREFILL}))
        feeds.append(PoolFeed(cluster, prefill, settings.prefill_pool_name, settings.pool_group))
        defaults = _defaults(settings, frozenset({Role.DECODE}))
    if settings.pool_name:
        feeds.append(PoolFeed(cluster, defaults, settings.pool_name, settings.pool_group))
    return feeds


def _defaults(settings: EndpointsSettings, roles: frozenset[Role] | None = None) -> Defaults:
    return Defaults(
        readiness=settings.pod_readiness,
        roles=roles,
        events_port=settings.events_port or None,
        replay_port=settings.replay_port or None,
        ipv6=settings.pod_ipv6,
    )


def _labels(text: str) -> dict[str, str]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if not pairs or not all(name and equals and not value.startswith("=") for name, equals, value in pairs):
        raise SettingsError(f"EPP_POD_SELECTOR={text!r}: expected label=value, several joined by commas")
    return {name: value for name, _, value in pairs}


def _ports(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in (text or "").split(",")]
    numbers = [int(part) for part in parts if part.isdecimal() and 1 <= int(part) <= MAX_PORT]
    if len(set(numbers)) != len(parts) or len(parts) > MAX_PORTS:
        raise SettingsError(
            f"EPP_TARGET_PORTS={text or ''!r}: expected 1 to {MAX_PORTS} different ports, as in 8000,8001"
        )
    return tuple(numbers)
