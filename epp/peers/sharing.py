"""Load sharing as the rest of the EPP sees it: start, stop, status, and one warning when it does not work."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.namespace import own_namespace
from epp.endpoints.kubernetes.watch import Timing
from epp.endpoints.pool import Pool
from epp.peers.addresses import PORTS_PER_PROCESS, Place, Processes, own_addresses, static_peers, tcp, without
from epp.peers.carrier import Carrier, CarrierOptions, Link
from epp.peers.curve import CurveKey
from epp.peers.group import Group, GroupRules, Peer
from epp.peers.metrics import PeersMetrics
from epp.peers.notices import Notices
from epp.peers.prompts import PromptExchange
from epp.peers.slices import ServicePods
from epp.peers.status import PeersStatus, PeerStatus
from epp.scheduling.load import Load
from epp.settings import Settings, SettingsError

_log = structlog.get_logger(__name__)

_FLUSHED_AT_ONCE = 4
"""Messages that are sent without a pause."""
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 10.0
"""How long a peer may be silent, or deaf, before somebody is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTimes:
    """All waits of load sharing, in seconds."""

    beat: float = 0.25
    batch: float = 0.001
    """Changes wait at most so long for others to go with them."""
    patience: float = _PATIENCE_SECONDS


class LoadSharing:
    """Tells the load of our picks to all peers and counts theirs, between `start` and `stop`."""

    def __init__(
        self,
        group: Group,
        carrier: Carrier,
        places: Callable[[], Iterable[Place]],
        *,
        times: SharingTimes | None = None,
        pods: ServicePods | None = None,
        key: CurveKey | None = None,
        own_places: tuple[Place, ...] = (),
        prefix_secret: bytes | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """`places` says where peers may be now; `pods` is what it learns that from, if anything must run for it."""
        self.group = group
        group.wake = self.wake
        self.carrier = carrier
        self.places = places
        self._times = times or SharingTimes()
        self._pods = pods
        self.key = key
        self.own_places = own_places
        self.prefix_secret = prefix_secret
        """Of the prefix keys, that all replicas may use; None: they share none."""
        self._tasks: list[asyncio.Task[None]] = []
        self._flushing: asyncio.TimerHandle | asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._troubled_since: float | None = None
        self._warned = False
        self._status = PeersStatus()
        if registry is not None:
            PeersMetrics(lambda: self._status, registry)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        load: Load,
        pool: Pool,
        processes: Processes,
        registry: CollectorRegistry,
        prompts: PromptExchange | None = None,
        notices: Notices | None = None,
    ) -> "LoadSharing | None":
        """Load sharing as the settings want it; None where there is nobody to share with.

        Raises SettingsError.
        """
        peers = static_peers(settings.peers or "", settings.peer_port)
        across = bool(peers or settings.peer_service)
        if not across and processes.folder is None:
            return None
        key = _key(settings) if across else None
        rules = GroupRules(
            silent_beats=max(2, round(settings.peer_silence_seconds / settings.peer_beat_seconds)),
            most_peers=settings.max_peers,
            most_reservations=settings.peer_max_reservations,
        )
        name = f"{socket.gethostname()}/{processes.index}" if processes.folder else socket.gethostname()
        group = Group(load, secrets.randbits(63) or 1, name[:256], rules=rules, prompts=prompts, notices=notices)
        _follow_pool(group, pool)
        places = list(processes.own_ipc())
        if across:
            host = settings.peer_host or settings.host
            places.append(tcp(host, settings.peer_port + PORTS_PER_PROCESS * processes.index))
        options = CarrierOptions(
            places=tuple(place.load for place in places), key=key, queue_messages=settings.peer_queue_messages
        )
        pods = _service_pods(settings)
        return cls(
            group,
            Carrier(group, options),
            partial(_places, processes, peers, pods, settings.peer_port),
            times=SharingTimes(beat=settings.peer_beat_seconds, batch=settings.peer_batch_ms / 1000),
            pods=pods,
            key=key,
            own_places=tuple(places),
            prefix_secret=key.prefix_secret if key is not None else processes.prefix_secret,
            registry=registry,
        )

    async def start(self) -> None:
        """Publish and listen. Raises OSError when a port cannot be had."""
        self._loop = asyncio.get_running_loop()
        self.carrier.start()
        if self._pods is not None:
            self._tasks.append(asyncio.create_task(self._pods.run(), name="peers of the service"))
        self._tasks.append(asyncio.create_task(self._beats(), name="peer beats"))

    async def stop(self) -> None:
        """Say good-bye: our load is over."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._flushing is not None:
            self._flushing.cancel()
        self._loop = None
        for message in self.group.beat(time.monotonic(), leaving=True):
            self.carrier.send(message)
        await asyncio.to_thread(self.carrier.stop)

    async def places_known(self) -> None:
        """Return when it is known where peers are, as far as that must be asked for."""
        while True:
            if self._pods is None or self._pods.source.listed:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def wake(self) -> None:
        """There is something to tell."""
        if self._flushing is None and self._loop is not None:
            self._flushing = self._loop.call_later(self._times.batch, self._flush)

    def status(self) -> PeersStatus:
        """The section of `/status`."""
        return self._status

    def _flush(self) -> None:
        self._flushing = None
        for _ in range(_FLUSHED_AT_ONCE):
            message = self.group.flush()
            if message is None:
                return
            self.carrier.send(message)
        if self.group.pending:
            self.wake()

    async def _beats(self) -> None:
        while True:
            try:
                self._beat(time.monotonic())
            except Exception:  # noqa: BLE001 - logged; without beats the others would take us for dead
                _log.exception("internal fault in load sharing")
            await asyncio.sleep(self._times.beat)

    def _beat(self, now: float) -> None:
        self.carrier.follow(place.load for place in self.places())
        for message in self.group.beat(now):
            self.carrier.send(message)
        if self.group.pending:
            self.wake()
        self._status = self._collect(now)
        self._say(now)

    def _say(self, now: float) -> None:
        """One warning when sharing does not work, one line when it works again."""
        problem = self._status.problem
        if not problem:
            if self._warned:
                _log.info("load sharing works again")
            self._warned, self._troubled_since = False, None
        elif self._troubled_since is None:
            self._troubled_since = now
        elif not self._warned and now - self._troubled_since >= self._times.patience:
            self._warned = True
            _log.warning("load sharing does not work: workers may seem less busy than they are", reason=problem)

    def _collect(self, now: float) -> PeersStatus:
        counts, links = self.group.counts, self.carrier.links
        prompts = self.group.prompt_counts
        spoken = {peer.link: peer for peer in self.group.peers.values()}
        peers = tuple(_peer_status(address, spoken.get(address), now) for address in {**links, **spoken})
        return PeersStatus(
            enabled=True,
            name=self.group.name,
            encrypted=self.key is not None,
            problem=self._problem(links, spoken),
            peers=peers,
            sent=counts.sent,
            received=counts.received,
            bad=counts.bad,
            refused_keys=self.carrier.refused,
            vanished=counts.vanished,
            prompts_told=prompts.told,
            prompts_foreign=prompts.foreign,
            prompt_keys_crowded_out=prompts.crowded_out,
        )

    def _problem(self, links: dict[str, Link], spoken: dict[str, Peer]) -> str:
        known = {link.peer for link in links.values() if link.heard_at is not None}
        present = {peer.id for peer in self.group.peers.values() if peer.present}
        silent = sorted(link.address for link in links.values() if link.peer not in present)
        deaf = sorted(peer.name for peer in spoken.values() if peer.present and not self._hears_us(peer))
        parts = []
        if silent:
            parts.append(f"nothing is heard from {', '.join(silent)}")
        if deaf:
            parts.append(f"{', '.join(deaf)} does not hear us")
        if self.carrier.refused and (silent or deaf):
            parts.append(f"{self.carrier.refused} connections had another EPP_PEER_KEY_FILE")
        if self.group.counts.bad and not known:
            parts.append("what comes is no message of ours")
        return "; ".join(parts)

    def _hears_us(self, peer: Peer) -> bool:
        return peer.hears_us * self._times.beat < self._times.patience


def _follow_pool(group: Group, pool: Pool) -> None:
    snapshot = pool.snapshot()
    for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
        group.join(column, endpoint)
    pool.on_join(group.join)
    pool.on_leave(group.leave)


def _key(settings: Settings) -> CurveKey | None:
    if settings.peer_key_file is not None:
        return CurveKey.read(settings.peer_key_file)
    if not settings.peer_plaintext:
        raise SettingsError(
            "EPP_PEER_KEY_FILE: expected a file with the key that all replicas share, since EPP_PEERS or "
            "EPP_PEER_SERVICE is set; EPP_PEER_PLAINTEXT=true does without"
        )
    _log.warning("EPP_PEER_PLAINTEXT is on: anyone who reaches the peer port can read and change the load")
    return None


def _service_pods(settings: Settings) -> ServicePods | None:
    if not settings.peer_service:
        return None
    timing = Timing(
        watch=settings.kube_watch_seconds,
        watch_silence=settings.kube_silence_seconds,
        longest_pause=settings.kube_retry_seconds,
        absent_pause=settings.kube_retry_seconds,
    )
    return ServicePods(KubernetesClient(), settings.namespace or own_namespace(), settings.peer_service, timing)


def _places(
    processes: Processes, static: list[tuple[str, int]], pods: ServicePods | None, port: int
) -> Iterable[Place]:
    found = processes.siblings()
    for host, first in static:
        found += processes.of_pod(host, first)
    if pods is not None:
        ours = {*own_addresses(), os.environ.get("POD_IP", "")}
        for host in without(sorted(pods.hosts()), ours):
            found += processes.of_pod(host, port)
    return found


def _peer_status(address: str, peer: Peer | None, now: float) -> PeerStatus:
    if peer is None:
        return PeerStatus(address=address)
    mirror = peer.mirror
    return PeerStatus(
        address=address,
        name=peer.name,
        epp=peer.epp,
        message_version=peer.version,
        present=peer.present,
        hears_us=peer.hears_us < 4,
        seconds_since_heard=round(now - peer.heard_at, 3),
        lag_seconds=peer.lag,
        reservations=len(mirror),
        in_step=not mirror.torn,
        same_keys=peer.same_keys,
        lost=mirror.lost,
        mended=mirror.mended,
    )
