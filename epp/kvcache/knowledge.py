"""All that is known of the pool's caches: one event stream for each rank, all feeding one index."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineSample
from epp.endpoints.pool import Pool
from epp.kvcache.assumed import AssumedLimits
from epp.kvcache.causes import Evidence
from epp.kvcache.central import Bind
from epp.kvcache.feeds import Feeds
from epp.kvcache.followed import Followed
from epp.kvcache.image import Anchors, RankImage, anchors_of
from epp.kvcache.inquiries import Inquiries
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.prefix_index import Match
from epp.kvcache.run_index import RunIndex
from epp.kvcache.snapshot import RankPieces, encode
from epp.kvcache.sources import Source, configured, connecting
from epp.kvcache.status import COUNTED, KvStatus
from epp.kvcache.stream import StreamOptions
from epp.prompts.prompt import Prompt
from epp.settings import Settings

_log = structlog.get_logger()

_NAMED = 8
"""Endpoints that one warning names."""

_STEPS_WAITED = 1000
"""Turns of the loop in which a snapshot waits for a batch that is half in the index, before it leaves out the rank."""


class KvKnowledge:
    """Follows the KV events of the pool's endpoints between `start` and `stop`, and learns from our own traffic.

    `index` may be asked at any time. Of endpoints that publish no events, and of all when `events` is false, it holds
    what our own picks sent there.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        index: RunIndex,
        options: StreamOptions | None = None,
        events: bool = True,
        block_size: int = 16,
        adopt_block_size: bool = True,
        limits: AssumedLimits | None = None,
        max_streams: int = 4096,
        discover_seconds: float | None = None,
        bind: Bind | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index
        self._pool = pool
        self._options = options or StreamOptions()
        self._block_size = block_size
        self._events = events
        self._max_streams = max_streams
        self._inquiries = Inquiries(discover_seconds, self._found) if events and discover_seconds is not None else None
        self._feeds = Feeds(
            index=index,
            options=self._options,
            limits=limits or AssumedLimits(),
            block_size=block_size,
            adopt_block_size=adopt_block_size,
            max_streams=max_streams,
            bind=bind if events else None,
        )
        self._clock = clock
        self._sample: Callable[[int], EngineSample | None] = lambda _column: None
        self._timer: asyncio.TimerHandle | None = None
        self._followed: dict[int, list[Followed]] = {}
        self._confidence: NDArray[np.float64] = np.zeros(0)
        self._gone: Counter[str] = Counter()
        self._gone_skipped: Counter[str] = Counter()
        self._ranks = 0
        """Of all endpoints."""
        self._holding = False
        self._images: dict[str, RankImage] = {}
        self._anchors: Anchors = {}
        pool.on_join(self._join)
        pool.on_leave(self._leave)

    @classmethod
    def from_settings(cls, settings: Settings, pool: Pool) -> "KvKnowledge":
        """Knowledge of `pool` with the index and the bounds that the settings name."""
        index = RunIndex(
            PrefixKeys(max_tokens=settings.kv_index_max_tokens),
            tier_credits=(1.0, settings.kv_credit_host, settings.kv_credit_disk, settings.kv_credit_external),
            max_blocks=settings.kv_index_max_blocks,
        )
        options = StreamOptions(
            high_water_mark=settings.kv_events_max_waiting,
            max_message_bytes=settings.kv_events_max_bytes,
            replay_idle_seconds=settings.kv_replay_seconds,
            max_parked=settings.kv_max_parked_blocks,
            topic=settings.kv_events_topic,
        )
        limits = AssumedLimits(
            overlay_seconds=settings.kv_overlay_seconds,
            kept_seconds=settings.kv_predicted_seconds,
            worker_blocks=settings.kv_worker_blocks,
        )
        return cls(
            pool=pool,
            index=index,
            options=options,
            events=settings.kv_events,
            block_size=settings.block_size,
            adopt_block_size=settings.kv_adopt_block_size,
            limits=limits,
            discover_seconds=settings.kv_discover_seconds if settings.kv_discover else None,
            bind=Bind(settings.host, port, settings.kv_bind_ranks) if (port := settings.kv_bind_port) else None,
        )

    async def start(self) -> None:
        """Follow the endpoints that are in the pool, and from now on all that join.

        Raises OSError when a port that engines are to connect to is taken.
        """
        self._feeds.start()
        snapshot = self._pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            self._join(column, endpoint)
        self._tick()

    def on_adapter(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of the LoRA adapter of each stored block that has one."""
        self._feeds.on_adapter = listener

    def on_disconnect(self, listener: Callable[[Endpoint], None]) -> None:
        """Call `listener` when an event socket of an endpoint closes, as it does at once when the engine dies."""
        self._feeds.on_disconnect = listener

    def learn_shape_from(self, sample: Callable[[int], EngineSample | None]) -> None:
        """Ask `sample(column)` once a second what the engine's metrics say of its cache's size."""
        self._sample = sample

    def evidence(self, column: int) -> Evidence:
        """What tells why predictions for an endpoint go wrong, if they do."""
        followed = self._followed.get(column)
        return followed[0].evidence() if followed else Evidence()

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column."""
        return self._feeds.match(prompt)

    def confidence(self, columns: NDArray[np.intp]) -> NDArray[np.float64]:
        """How sure it is what the endpoints of `columns`, which rise, hold: 0 to 1, of the least known rank of each.

        As of the last second; what it returns does not change.
        """
        if len(columns) and columns[-1] >= len(self._confidence):
            self._confidence = np.pad(self._confidence, (0, int(columns[-1]) + 1 - len(self._confidence)))
        return self._confidence.take(columns)

    def has_events(self, column: int) -> bool:
        """Whether events tell what the endpoint of `column` holds."""
        return any(followed.stream is not None for followed in self._followed.get(column, ()))

    def picked(self, column: int, prompt: Prompt) -> None:
        """A prompt is on its way to the endpoint of `column`: equal ones after it will find it there."""
        followed = self._followed.get(column)
        if followed and len(prompt.tokens):
            followed[0].picked(prompt, self._clock())

    def reported(self, column: int, endpoint: Endpoint, prompt: Prompt, cached_tokens: int) -> None:
        """`endpoint`, which had `column`, said how much of a prompt it had in its cache.

        Where it has several ranks, none of them is named: it is the one that goes on with that very prompt. Tokens that
        stand for text teach nothing: they cannot be counted against the engine's.
        """
        followed = self._followed.get(column, ())
        if not prompt.has_ids or not followed or followed[0].endpoint.incarnation != endpoint.incarnation:
            return
        if len(followed) == 1:
            followed[0].reported(prompt, cached_tokens, self._clock())
        else:
            for each in followed:
                each.reported_by_some_rank(prompt, cached_tokens, self._clock())

    # Snapshots.

    def snapshot(self) -> Iterator[bytes]:
        """All that events told, as bytes for a peer or a file; see `epp.kvcache.snapshot.encode`.

        Give the event loop a turn between steps: a rank whose batch is half in the index is waited for.
        """
        return encode(self.index.secret_id, self._pieces())

    def take_secret(self, secret: bytes) -> bool:
        """Make prefix keys as the index does that images come from; False when it is too late for that."""
        undecided = any(f.stream is not None and f.stream.sequence.offered for f in self._all())
        if secret != self.index.secret and (self._images or undecided):
            return False
        return self.index.take_secret(secret)

    def hold(self) -> None:
        """Until `release`, keep what publishers of new endpoints say: images of them may come that go before it.

        Call it before `start`. Endpoints without a replay port can begin with an image only if they were held, and if
        the image was made after their connection stood.
        """
        self._holding = True

    def offer(self, images: Iterable[RankImage]) -> None:
        """Images, of one snapshot, that endpoints may begin with, those that join later too.

        One is used only where the publisher's replay, or what was held, proves that it is of the same process. The
        index must make its prefix keys with the secret of the snapshot (`take_secret`).
        """
        images = list(images)
        self._anchors = anchors_of(images)
        self._images = {image.source: image for image in images}
        for followed in self._all():
            self._offer(followed)

    def release(self) -> None:
        """Go on with what was held, behind the images that were offered."""
        self._holding = False
        for followed in self._all():
            if followed.stream is not None:
                followed.stream.sequence.release()

    def _offer(self, followed: Followed) -> None:
        image = self._images.get(followed.source)
        if image is None:
            return
        if followed.endpoint.replay_port is None and image.incarnation != followed.endpoint.incarnation:
            return
        del self._images[image.source]
        followed.offer(image, self.index, self._anchors)

    def _pieces(self) -> Iterator[RankPieces | None]:
        for followed in self._all():
            for _ in range(_STEPS_WAITED):
                if followed.stream is None or followed.stream.settled:
                    break
                yield None
            image = None if followed.closed else followed.image()
            if image is not None:
                yield RankPieces(image, self.index.capture(followed.rank.number))

    async def stop(self) -> None:
        """Close all streams; the index forgets their blocks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for column in list(self._followed):
            self._unfollow(column)
        await self._feeds.stop()

    def status(self) -> KvStatus:
        """The section of `/status`."""
        ranks = tuple(followed.status() for followed in self._all())
        skipped = Counter(self._gone_skipped)
        for rank in ranks:
            skipped.update(rank.skipped)
        counts = self._feeds.drain.counts if self._feeds.drain else None
        return KvStatus(
            enabled=self._events,
            ranks=ranks,
            skipped=dict(skipped),
            gone=dict(self._gone),
            unknown_publishers=self._feeds.central.counts.unknown if self._feeds.central else 0,
            slices=counts.slices if counts else 0,
            full_slices=counts.full_slices if counts else 0,
            longest_slice_seconds=counts.longest_seconds if counts else 0.0,
        )

    def _all(self) -> list[Followed]:
        return [followed for ranks in self._followed.values() for followed in ranks]

    def _join(self, column: int, endpoint: Endpoint) -> None:
        if not self._feeds.open or column in self._followed:
            return
        sources = self._sources(endpoint)
        self._follow(column, endpoint, sources)
        if self._inquiries is not None and not sources:
            self._inquiries.begin(column, endpoint)

    def _sources(self, endpoint: Endpoint) -> list[Source]:
        if not self._events:
            return []
        return configured(endpoint) if self._feeds.central is None else connecting(endpoint)

    def _found(self, column: int, endpoint: Endpoint, sources: list[Source]) -> None:
        """Follow what the engine says; until then our own picks were all that was known."""
        if any(other.address == endpoint.address for other in self._pool.snapshot().endpoints if other != endpoint):
            sources = [source for source in sources if source.rank == endpoint.rank]
        if sources:
            self._forget(column)
            self._follow(column, endpoint, sources)

    def _connected(self, column: int) -> bool:
        return all(followed.stream is not None and followed.stream.connected for followed in self._followed[column])

    def _follow(self, column: int, endpoint: Endpoint, sources: Sequence[Source]) -> None:
        room = self._max_streams - self._ranks
        wanted: Sequence[Source | None] = sources or (None,)
        known = [self._feeds.follow(column, endpoint, source) for source in wanted[:room]]
        self._followed[column] = known
        self._ranks += len(known)
        for followed in known:
            if followed.stream is not None:
                if self._holding:
                    followed.stream.sequence.hold()
                self._offer(followed)
                followed.stream.open()

    def _tick(self) -> None:
        """Once a second, do what is due."""
        now = self._clock()
        self._tell_block_sizes()
        for column, ranks in self._followed.items():
            sample = self._sample(column)
            for followed in ranks:
                self._feeds.do(partial(followed.tick, now, self._options.mend_seconds, sample))
        self._note_confidence()
        if self._inquiries is not None:
            self._inquiries.tick(now, self._connected)
        self._timer = asyncio.get_running_loop().call_later(1.0, self._tick)

    def _note_confidence(self) -> None:
        confidence = np.zeros(max(self._followed, default=-1) + 1)
        for column, ranks in self._followed.items():
            confidence[column] = min((followed.confidence()[0] for followed in ranks), default=0.0)
        self._confidence = confidence

    def _tell_block_sizes(self) -> None:
        """One warning, however many workers it concerns."""
        others = [followed for followed in self._all() if followed.takes_other_block_size()]
        if others:
            _log.warning(
                "KV blocks have another size than the one that is set",
                endpoints=[followed.endpoint.name for followed in others[:_NAMED]],
                ranks=len(others),
                set=self._block_size,
                events=others[0].rank.decoder.block_size,
                used=others[0].rank.block_size,
            )

    def _leave(self, column: int, _endpoint: Endpoint) -> None:
        if column in self._followed:
            self._unfollow(column)

    def _unfollow(self, column: int) -> None:
        if self._inquiries is not None:
            self._inquiries.end(column)
        self._forget(column)

    def _forget(self, column: int) -> None:
        known = self._followed.pop(column)
        self._ranks -= len(known)
        for followed in known:
            status = followed.status()
            self._gone.update({name: getattr(status, name) for name in COUNTED})
            self._gone_skipped.update(status.skipped)
            followed.close()
