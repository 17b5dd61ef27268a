"""Opens what publishers say: one rank and one stream for each, by the form that its engine speaks."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import zmq

from epp.endpoints.endpoint import Endpoint
from epp.kvcache.assumed import AssumedLimits
from epp.kvcache.central import Bind, Central
from epp.kvcache.decoding import BatchDecoder
from epp.kvcache.drain import Drain, Work
from epp.kvcache.dynamo_events import DynamoDecoder, message
from epp.kvcache.dynamo_index import DynamoIndex
from epp.kvcache.followed import Followed
from epp.kvcache.prefix_index import BlockIndex, Match
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.kvcache.sources import DYNAMO, Source
from epp.kvcache.stream import ENGINE_WIRE, Stream, StreamOptions, Wire
from epp.kvcache.turns import Turns
from epp.prompts.prompt import Prompt

_SOCKETS_PER_STREAM = 5
"""Live, monitor (two ends), replay, and one to spare while a replay socket closes."""

_DYNAMO_WIRE = Wire(message, topic=b"kv-events")


class Feeds:
    """The sockets of all streams, and the indexes that they feed: one over tokens, and one over Dynamo's hashes of
    them for each block size that occurs on its event plane.
    """

    def __init__(
        self,
        *,
        index: RunIndex,
        options: StreamOptions,
        limits: AssumedLimits,
        block_size: int,
        adopt_block_size: bool,
        max_streams: int,
        bind: Bind | None,
    ) -> None:
        self.index = index
        self.on_adapter: Callable[[str], None] = lambda _name: None
        self.on_disconnect: Callable[[Endpoint], None] = lambda _endpoint: None
        self._options = options
        self._limits = limits
        self._block_size = block_size
        self._adopt_block_size = adopt_block_size
        self._max_streams = max_streams
        self._bind = bind
        self.central: Central | None = None
        """None: nobody connects to us."""
        self._dynamo: dict[int, DynamoIndex] = {}
        self._turns = Turns(options.replays_at_once)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.drain: Drain | None = None

    @property
    def open(self) -> bool:
        """Between `start` and `stop`."""
        return self._context is not None

    def start(self) -> None:
        """Be ready for streams. Raises OSError when engines are to connect to a port that is taken."""
        context = zmq.Context(io_threads=1)
        context.set(zmq.MAX_SOCKETS, _SOCKETS_PER_STREAM * self._max_streams)
        self._context = context
        self.drain = Drain()
        if self._bind is not None:
            self.central = Central(context, self.drain, self._options)
            self.central.open(self._bind)

    async def stop(self) -> None:
        """All streams must be closed."""
        if self.central is not None:
            self.central.close()
        if self.drain is not None:
            self.drain.finish()
            self.drain.close()
        if self._context is not None:
            context, self._context = self._context, None
            await asyncio.to_thread(context.term)

    def do(self, work: Work) -> None:
        """Do what takes its time between the reading of sockets."""
        assert self.drain is not None
        self.drain.wake(work)

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column, whichever index knows of them."""
        match = self.index.match(prompt)
        for index in self._dynamo.values():
            match = _most(match, index.match(prompt))
        return match

    def follow(self, column: int, endpoint: Endpoint, source: Source | None) -> Followed:
        """A rank of the endpoint, known by its events, or without a source by our own picks. Not yet connected."""
        rank = self._rank(column, endpoint, source)
        stream = None if source is None else self._stream(rank, endpoint, source)
        number = endpoint.rank if source is None else source.rank
        detach = None
        if stream is not None and self.central is not None and source is not None and source.events is None:
            detach = self.central.attach(endpoint, number, stream)
        return Followed(
            endpoint,
            number,
            rank,
            stream,
            self._limits.worker_blocks,
            source=_source_name(endpoint, source),
            detach=detach,
            expected_block_size=rank.block_size,
        )

    def _rank(self, column: int, endpoint: Endpoint, source: Source | None) -> Rank:
        is_dynamo = endpoint.engine == DYNAMO
        block_size = (source.block_size if source else None) or endpoint.block_size or self._block_size
        number = endpoint.rank if source is None else source.rank
        return Rank(
            self._dynamo_index(block_size) if is_dynamo else self.index,
            column,
            max_parked=self._options.max_parked,
            block_size=block_size,
            limits=self._limits,
            on_adapter=self.on_adapter,
            decoder=partial(DynamoDecoder, endpoint.instance_id, number) if is_dynamo else BatchDecoder,
            adopt_block_size=self._adopt_block_size or is_dynamo,
        )

    def _stream(self, rank: Rank, endpoint: Endpoint, source: Source) -> Stream:
        assert self._context is not None
        assert self.drain is not None
        options = self._options if source.topic is None else replace(self._options, topic=source.topic)
        return Stream(
            rank,
            self.drain,
            self._turns,
            self._context,
            options,
            events=source.events,
            replay=source.replay,
            on_disconnect=lambda: self.on_disconnect(endpoint),
            wire=_DYNAMO_WIRE if endpoint.engine == DYNAMO else ENGINE_WIRE,
        )

    def _dynamo_index(self, block_size: int) -> BlockIndex:
        index = self._dynamo.get(block_size)
        if index is None:
            index = self._dynamo[block_size] = DynamoIndex(self.index.empty_copy(), block_size)
        return index


def _source_name(endpoint: Endpoint, source: Source | None) -> str:
    if source is None:
        return ""
    return source.events or f"{endpoint.host_port} rank {source.rank}"


def _most(one: Match, other: Match) -> Match:
    short, long = sorted((one.cached_tokens, other.cached_tokens), key=len)
    if not len(short):
        return Match(long)
    most = long.copy()
    np.maximum(most[: len(short)], short, out=most[: len(short)])
    return Match(most)
