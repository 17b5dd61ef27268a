"""What one rank says about its cache: its batches decoded, orphans parked, the index fed."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from epp.kvcache.assumed import Assumed, AssumedLimits
from epp.kvcache.decoding import BatchDecoder
from epp.kvcache.events import Event, Removed, Skip, Stored
from epp.kvcache.prefix_index import BlockIndex
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Media, Prompt

_SLICE = 512
"""Blocks of one event that go into the index without a pause."""

_RECENT = 16
"""Reported prompts that are kept for events that come after them."""

_SWEEP = 256
"""Entries of cleared ranks whose memory is taken back without a pause."""


@dataclass(slots=True)
class RankCounts:
    """What a rank's events were."""

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Heard:
    """A report of what an engine found in its cache."""

    prompt: Prompt
    cached_tokens: int
    at: float


class EventDecoder(Protocol):
    """Reads the batches of one rank in the form of its publisher."""

    @property
    def block_size(self) -> int:
        """Tokens of a block as the events say; 0 if they do not."""

    @property
    def groups(self) -> Mapping[int, bool]:
        """Cache groups that were named, and which of them are full attention."""

    def decode(self, payload: bytes, skipped: Counter[Skip]) -> Iterator[Event | None]:
        """The usable events of a batch in order, and a None wherever the work may pause; the others are counted in
        `skipped`. Never raises.
        """


class Rank:
    """Feeds the index with the batches of one rank.

    Blocks with an unknown parent are parked, at most `max_parked` of them, until the parent comes; the oldest are
    dropped for newer ones. A block that is removed while it is parked is not stored later.
    """

    def __init__(
        self,
        index: BlockIndex,
        column: int,
        *,
        max_parked: int = 4096,
        on_adapter: Callable[[str], None] = lambda _name: None,
        block_size: int = 16,
        limits: AssumedLimits | None = None,
        decoder: Callable[[], EventDecoder] = BatchDecoder,
        adopt_block_size: bool = True,
    ) -> None:
        self._index = index
        self._on_adapter = on_adapter
        self.number = index.open(column)
        """The rank's handle in the index."""
        self._block_size = block_size
        self._believe_size = adopt_block_size
        self.assumed = Assumed(index, self.number, limits or AssumedLimits())
        self.as_text = Assumed(index, self.number, limits or AssumedLimits())
        """Of prompts without token ids, whose blocks no event will ever name."""
        self._recent: deque[_Heard] = deque(maxlen=_RECENT)
        self._new_decoder = decoder
        self.decoder = decoder()
        """What the batches said of block sizes and groups."""
        self._max_parked = max_parked
        self._parked: dict[int, list[Stored]] = {}
        self._parked_hashes: Counter[int] = Counter()
        self.counts = RankCounts()
        self.cleared_last = False
        self.adopted = 0
        """Chains with an unknown parent whose place a reported prompt revealed."""

    @property
    def block_size(self) -> int:
        """Tokens of a block: as events say, where that may be believed, else as the engine's metrics or the settings
        say.
        """
        return (self.decoder.block_size if self._believe_size else 0) or self._block_size

    def learn_shape(self, block_size: int | None, blocks: int | None) -> None:
        """What the engine's metrics say of its cache."""
        if block_size and self._believe_size and block_size != self._block_size:
            self._block_size = block_size
        if blocks:
            self.assumed.worker_blocks = self.as_text.worker_blocks = blocks
            self.assumed.size_known = True

    @property
    def blocks(self) -> int:
        """Blocks that the rank is known to hold."""
        return self._index.blocks(self.number)

    @property
    def parked(self) -> int:
        """Blocks that wait for their parent."""
        return self._parked_hashes.total()

    def feed(self, payload: bytes) -> Iterator[None]:
        """Bring one batch into the index, pausing after each step that may take long."""
        for event in self.decoder.decode(payload, self.counts.skipped):
            if event is None:
                yield
                continue
            for part in _parts(event):
                self._event(part)
                yield

    def reported(self, prompt: Prompt, cached_tokens: int, now: float) -> None:
        """The engine found `cached_tokens` tokens of `prompt` in its cache: they are there, known or not.

        What it computed begins behind them, so a parked event with those very tokens shows its place.
        """
        cached_tokens -= cached_tokens % self.block_size
        self.assumed.keep(prompt, cached_tokens, self.block_size, now)
        self.assumed.refute(prompt, cached_tokens, self.block_size)
        self.heard(prompt, cached_tokens, now)

    def heard(self, prompt: Prompt, cached_tokens: int, now: float) -> None:
        """Somebody, perhaps another rank, found `cached_tokens` tokens of `prompt`: if this one computes what comes
        behind them, it was this one.
        """
        cached_tokens -= cached_tokens % self.block_size
        if cached_tokens:
            heard = _Heard(prompt, cached_tokens, now)
            self._recent.append(heard)
            for parent, events in list(self._parked.items()):
                if self._continues(events[0], prompt, cached_tokens):
                    self._name(parent, heard)
                    for child in self._adopt(parent):
                        self._store(child)

    def resume(self, block_size: int, groups: Mapping[int, bool]) -> None:
        """Batches are decoded as behind those that said this of block sizes and groups; the index is filled apart."""
        self.decoder = BatchDecoder(block_size, groups)

    def forget(self) -> None:
        """The rank started anew and holds nothing."""
        self.decoder = self._new_decoder()
        self._clear()

    def close(self) -> None:
        """The rank is gone."""
        self._index.close(self.number)

    def sweep(self) -> bool:
        """One step of taking back the memory of what was cleared; False when all is done."""
        return self._index.sweep(_SWEEP)

    def _event(self, event: Event) -> None:
        self.cleared_last = False
        if isinstance(event, Stored):
            if not self._believe_size and event.block_size not in (0, self._block_size):
                self.counts.skipped[Skip.BLOCK_SIZE] += 1
                return
            self.counts.stored += len(event.hashes)
            if event.adapter:
                self._on_adapter(event.adapter)
            self._store(event)
        elif isinstance(event, Removed):
            self.counts.removed += len(event.hashes)
            self._index.remove(self.number, event)
            if self._parked_hashes:
                self._unpark(event.hashes)
        else:
            self.counts.cleared += 1
            self._clear()
            self.cleared_last = True

    def _clear(self) -> None:
        self._index.clear(self.number)
        self._parked.clear()
        self._parked_hashes.clear()
        self._recent.clear()
        self.assumed.clear()
        self.as_text.clear()

    def _store(self, stored: Stored) -> None:
        waiting = [stored]
        while waiting:
            stored = waiting.pop()
            reason = self._index.store(self.number, stored)
            if reason is Skip.ORPHAN:
                waiting.extend(self._park(stored))
            elif reason is not None:
                self.counts.skipped[reason] += 1
            elif self._parked:
                for hash_ in stored.hashes:
                    waiting.extend(self._adopt(hash_))

    def _park(self, stored: Stored) -> list[Stored]:
        """Keep an orphan; it comes back at once when a prompt reported lately shows its place."""
        if stored.parent is None or len(stored.hashes) > self._max_parked:
            return []
        for heard in reversed(self._recent):
            if self._continues(stored, heard.prompt, heard.cached_tokens):
                self._name(stored.parent, heard)
                return [stored]
        self.counts.skipped[Skip.ORPHAN] += 1
        while self.parked + len(stored.hashes) > self._max_parked:
            self._adopt(next(iter(self._parked)))
        self._parked.setdefault(stored.parent, []).append(stored)
        self._parked_hashes.update(stored.hashes)
        return []

    def _continues(self, stored: Stored, prompt: Prompt, start: int) -> bool:
        """Whether the event's tokens are those of the prompt from `start` on, for a block at least."""
        tokens = prompt.tokens[start : start + len(stored.tokens)]
        if len(tokens) < stored.block_size or stored.tokens[0] != tokens[0] or stored.block_size != self.block_size:
            return False
        beginning = namespace(stored.adapter) if stored.adapter or not prompt.namespace else "0:"
        if not prompt.namespace.startswith(beginning):
            return False
        return np.array_equal(np.frombuffer(stored.tokens, dtype=np.uint32)[: len(tokens)], tokens)

    def _name(self, parent: int, heard: "_Heard") -> None:
        """What the engine found in its cache ends with its block `parent`; its blocks before that have no known hash,
        so they are kept as those of any report are.
        """
        self.assumed.keep(heard.prompt, heard.cached_tokens, self.block_size, heard.at)
        self._index.name(self.number, heard.prompt, heard.cached_tokens, self.block_size, parent)
        self.adopted += 1

    def _adopt(self, parent: int) -> list[Stored]:
        """Take the events that wait for `parent` out of the car park."""
        children = self._parked.pop(parent, [])
        for child in children:
            self._parked_hashes.subtract(child.hashes)
        if children:
            self._parked_hashes += Counter()  # drop the zeros
        return children

    def _unpark(self, hashes: list[int]) -> None:
        for hash_ in hashes:
            if hash_ in self._parked_hashes:
                self._cut_parked(hash_)

    def _cut_parked(self, hash_: int) -> None:
        """Engines evict from the end of a chain, so what follows the removed block goes with it."""
        for parent, events in list(self._parked.items()):
            for event in events:
                if hash_ in event.hashes:
                    kept = event.hashes.index(hash_)
                    self._parked_hashes.subtract(event.hashes[kept:])
                    self._parked_hashes += Counter()
                    del event.hashes[kept:], event.tokens[kept * event.block_size :]
                    if not event.hashes:
                        events.remove(event)
                    if not events:
                        del self._parked[parent]
                    return


def _parts(event: Event) -> Iterator[Event]:
    """A long store as several shorter ones, each the parent of the next."""
    if not isinstance(event, Stored) or len(event.hashes) <= _SLICE or not event.block_size:
        yield event
        return
    parent = event.parent
    for start in range(0, len(event.hashes), _SLICE):
        hashes = event.hashes[start : start + _SLICE]
        first, behind = start * event.block_size, (start + len(hashes)) * event.block_size
        yield Stored(
            hashes,
            parent,
            event.tokens[first:behind],
            event.block_size,
            event.tier,
            event.adapter,
            event.salt,
            tuple(_from(item, first) for item in event.media if first <= item.offset < behind),
        )
        parent = hashes[-1]


def _from(item: Media, start: int) -> Media:
    return Media(item.id, item.offset - start)
