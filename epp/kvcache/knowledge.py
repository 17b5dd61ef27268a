"""All that is known of the pool's caches: one event stream for each rank, all feeding one index."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import zmq

from epp.endpoints.endpoint import Endpoint, host_port
from epp.endpoints.pool import Pool
from epp.kvcache.drain import Drain
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.prefix_index import BlockIndex
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.kvcache.status import KvStatus, RankStatus
from epp.kvcache.stream import Stream, StreamOptions
from epp.settings import Settings

_SOCKETS_PER_STREAM = 5
"""Live, monitor (two ends), replay, and one to spare while a replay socket closes."""


class KvKnowledge:
    """Follows the KV events of the pool's endpoints between `start` and `stop`.

    `index` may be asked at any time; it is empty for endpoints that publish no events.
    """

    def __init__(
        self, *, pool: Pool, index: BlockIndex, options: StreamOptions | None = None, max_streams: int = 4096
    ) -> None:
        self.index = index
        self.on_adapter: Callable[[str], None] = lambda _name: None
        """Called with the name of the LoRA adapter of each stored block that has one."""
        self._pool = pool
        self._options = options or StreamOptions()
        self._max_streams = max_streams
        self._followed: dict[int, _Followed] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._drain: Drain | None = None
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
        return cls(pool=pool, index=index, options=options)

    async def start(self) -> None:
        """Follow the endpoints that are in the pool, and from now on all that join."""
        context = zmq.Context(io_threads=1)
        context.set(zmq.MAX_SOCKETS, _SOCKETS_PER_STREAM * self._max_streams)
        self._context = context
        self._drain = Drain()
        snapshot = self._pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            self._join(column, endpoint)

    async def stop(self) -> None:
        """Close all streams; the index forgets their blocks."""
        for column in list(self._followed):
            self._unfollow(column)
        if self._context is not None:
            context, self._context = self._context, None
            await asyncio.to_thread(context.term)

    def status(self) -> KvStatus:
        """The section of `/status`."""
        ranks = tuple(followed.status() for followed in list(self._followed.values()))
        skipped: Counter[str] = Counter()
        for rank in ranks:
            skipped.update(rank.skipped)
        counts = self._drain.counts if self._drain else None
        return KvStatus(
            enabled=self._context is not None,
            ranks=ranks,
            skipped=dict(skipped),
            slices=counts.slices if counts else 0,
            full_slices=counts.full_slices if counts else 0,
            longest_slice_seconds=counts.longest_seconds if counts else 0.0,
        )

    def _join(self, column: int, endpoint: Endpoint) -> None:
        if self._context is None or self._drain is None or endpoint.events_port is None or column in self._followed:
            return
        if len(self._followed) >= self._max_streams:
            return
        rank = Rank(self.index, column, max_parked=self._options.max_parked, on_adapter=self.on_adapter)
        source = f"tcp://{host_port(endpoint.address, endpoint.events_port)}"
        replay = f"tcp://{host_port(endpoint.address, endpoint.replay_port)}" if endpoint.replay_port else None
        stream = Stream(rank, self._drain, self._context, self._options, events=source, replay=replay)
        self._followed[column] = _Followed(endpoint, source, rank, stream)
        stream.open()

    def _leave(self, column: int, _endpoint: Endpoint) -> None:
        if column in self._followed:
            self._unfollow(column)

    def _unfollow(self, column: int) -> None:
        self._followed.pop(column).stream.close()


class _Followed:
    """One endpoint with its stream."""

    __slots__ = ("endpoint", "rank", "source", "stream")

    def __init__(self, endpoint: Endpoint, source: str, rank: Rank, stream: Stream) -> None:
        self.endpoint = endpoint
        self.source = source
        self.rank = rank
        self.stream = stream

    def status(self) -> RankStatus:
        """What is known of the rank."""
        stream, sequence, events = self.stream.counts, self.stream.sequence.counts, self.rank.counts
        last = self.stream.last_message_at
        return RankStatus(
            endpoint=self.endpoint.name,
            rank=self.endpoint.rank,
            source=self.source,
            connected=self.stream.connected,
            complete=self.stream.sequence.complete,
            idle_seconds=None if last is None else time.monotonic() - last,
            sequence=self.stream.sequence.last,
            blocks=self.rank.blocks,
            parked=self.rank.parked,
            waiting=self.stream.waiting,
            messages=stream.messages,
            bad_frames=stream.bad_frames,
            batches=sequence.applied,
            replayed=sequence.replayed,
            lost=sequence.lost,
            repeated=sequence.repeated,
            restarts=sequence.restarts,
            replays=sequence.replays,
            replays_failed=sequence.replays_failed,
            stored=events.stored,
            removed=events.removed,
            cleared=events.cleared,
            full_queues=stream.full_queues,
            faults=stream.faults,
            skipped={str(reason): count for reason, count in events.skipped.items()},
        )
