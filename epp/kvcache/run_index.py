"""The index of held blocks as compressed runs.

Prompts that begin alike share runs, so a lookup compares one key for each run and a few more where it leaves one. A
branch is a run of its own whose first key is found in `heads`; runs are never split. Each block has one place, since
the block before it has one.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from epp.kvcache.events import Removed, Skip, Stored, Tier
from epp.kvcache.image import Anchors, LayerCapture, Segment, words
from epp.kvcache.keys import Keys, PrefixKeys
from epp.kvcache.layers import NOWHERE, Layer, Slots, decrement
from epp.kvcache.leads import Path, follow, layered_lead, leads
from epp.kvcache.places import Forest, Places, Where
from epp.kvcache.prefix_index import FULL_CREDIT, Match, weigh
from epp.kvcache.runs import OFFSET_BITS, OFFSET_MASK, Run
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt

_EVICTED_AT_ONCE = 256


@dataclass(slots=True)
class _Rank:
    column: int
    layers: dict[Tier, Layer] = field(default_factory=dict)


class RunIndex:
    """Who holds what, by rank; the same answers as `NaiveIndex`, in less time and memory.

    `max_blocks` bounds the entries (a block of a rank in a tier). Beyond it, what the fullest rank stored last is
    given up: the ends of its prefixes.
    """

    def __init__(
        self, keys: PrefixKeys, *, tier_credits: tuple[float, ...] = FULL_CREDIT, max_blocks: int = 10_000_000
    ) -> None:
        self._keys = keys
        self._credits = tier_credits
        self._max_blocks = max_blocks
        self._places = Places()
        self._ranks: dict[int, _Rank] = {}
        self._next_rank = 0
        self._layered: dict[int, _Rank] = {}
        self._slots = Slots()
        self._retired: deque[Layer] = deque()
        self._columns = 0
        self._last: tuple[Prompt, int, Keys] | None = None
        self.entries = 0
        self.evicted = 0
        self.confirmed = 0
        """Stand-ins whose block an event has named since."""

    def empty_copy(self) -> "RunIndex":
        """An index of its own with the same bounds, holding nothing."""
        keys = PrefixKeys(max_tokens=self._keys.max_tokens)
        return RunIndex(keys, tier_credits=self._credits, max_blocks=self._max_blocks)

    def open(self, column: int) -> int:
        """A new rank behind the endpoint of `column`, holding nothing."""
        self._next_rank += 1
        self._columns = max(self._columns, column + 1)
        self._ranks[self._next_rank] = _Rank(column)
        return self._next_rank

    def close(self, rank: int) -> None:
        """Forget the rank at once; its memory comes back with `sweep`."""
        self.clear(rank)
        column = self._ranks.pop(rank).column
        if column == self._columns - 1:
            self._columns = max((state.column + 1 for state in self._ranks.values()), default=0)

    def clear(self, rank: int) -> None:
        """The rank holds nothing at once; its memory comes back with `sweep`."""
        state = self._ranks[rank]
        for layer in state.layers.values():
            self._slots.hide(layer.slot)
            self.entries -= layer.entries
            self._retired.append(layer)
        state.layers.clear()
        self._layered.pop(rank, None)

    def sweep(self, steps: int) -> bool:
        """Take back memory of cleared ranks, `steps` entries at most; False when none is left."""
        while self._retired and steps > 0:
            layer = self._retired[0]
            while layer.runs and steps > 0:
                self._drop(layer.runs.pop(), layer.slot)
                steps -= 1
            while layer.places and steps > 0:
                layer.places.popitem()
                steps -= 1
            if not layer.runs and not layer.places:
                self._slots.give_back(self._retired.popleft().slot)
        return bool(self._retired)

    def blocks(self, rank: int) -> int:
        """Entries of the rank: different blocks, counted once for each tier."""
        return sum(layer.entries for layer in self._ranks[rank].layers.values())

    # Events.

    def store(self, rank: int, stored: Stored) -> Skip | None:
        """Add one copy of each block; the reason if they cannot be placed."""
        state = self._ranks[rank]
        if not stored.block_size:
            return self._store_known(state, rank, stored)
        if stored.parent is None:
            run, offset = None, NOWHERE
            position, key = 0, self._keys.seed(namespace(stored.adapter, stored.salt))
        else:
            place = self._place_of(state, stored.parent)
            if place is None:
                return Skip.ORPHAN
            (run, forest), offset = self._places.runs[place >> OFFSET_BITS], place & OFFSET_MASK
            position, key = (run.start + offset + 1) * forest.block_size, run.keys[offset]
            if forest.block_size != stored.block_size:
                run, offset = None, NOWHERE
        if position + len(stored.tokens) > self._keys.max_tokens:
            return Skip.TOO_LONG
        if position % stored.block_size:
            return Skip.SHAPE
        keys = self._keys.chain(key, position, stored.tokens, stored.block_size, stored.media)
        where = Where(self._places.forest(stored.block_size), run, offset, position // stored.block_size, key)
        layer = self._layer(rank, stored.tier)
        if len(keys) != 1 or not self._append(state, layer, stored.hashes[0], keys[0], where):
            self._place_all(state, layer, stored.hashes, keys, where)
        if self.entries > self._max_blocks:
            self._evict()
        return None

    def remove(self, rank: int, removed: Removed) -> None:
        """Take one copy of each known block."""
        layer = self._ranks[rank].layers.get(removed.tier)
        if layer is not None:
            for hash_ in removed.hashes:
                if removed.whole:
                    layer.copies.pop(hash_, None)
                self._remove(layer, hash_)

    # What no event has said.

    def assume(self, rank: int, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Take the rank to hold the full blocks of the prompt's first `tokens` tokens.

        Returns stand-ins for the hashes of those that it was not known to hold, in order; `remove` takes them. A
        stand-in gives way to the engine's own hash when an event names the block.
        """
        keys, where = self._follow(rank, prompt, tokens, block_size)
        stand_ins = [~key for key in keys]
        if stand_ins:
            self._place_all(self._ranks[rank], self._layer(rank, Tier.GPU), stand_ins, keys, where)
            if self.entries > self._max_blocks:
                self._evict()
        return stand_ins

    def stand_ins(self, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Stand-ins for the hashes of the prompt's first full blocks, held or not."""
        keys = self._keys_of(prompt, tokens, block_size)
        return [~key for key in keys.tolist()]

    def name(self, rank: int, prompt: Prompt, tokens: int, block_size: int, hash_: int) -> None:
        """The engine's hash of the block that ends the prompt's first `tokens` tokens, all of which it holds."""
        self.assume(rank, prompt, tokens, block_size)
        _, where = self._follow(rank, prompt, tokens, block_size)
        if where.run is not None:
            state = self._ranks[rank]
            self._hold_one(state, self._layer(rank, Tier.GPU), where.forest, where.run, where.offset, hash_)

    def _follow(self, rank: int, prompt: Prompt, tokens: int, block_size: int) -> tuple[list[int], Where]:
        """Keys of the blocks behind those that the rank holds without a hole, and where the held ones end."""
        forest = self._places.forest(block_size)
        keys = self._keys_of(prompt, tokens, block_size)
        slot = self._layer(rank, Tier.GPU).slot
        where = Where(forest, None, NOWHERE, 0, self._keys.seed(prompt.namespace))
        for run, matched in follow(forest.heads, keys.data):
            length = min(run.held.get(slot, 0), matched)
            if length:
                where = Where(forest, run, length - 1, where.blocks + length, run.keys[length - 1])
            if length < matched:
                break
        return keys[where.blocks :].tolist(), where

    def _keys_of(self, prompt: Prompt, tokens: int, block_size: int) -> Keys:
        """Keys of the full blocks in the prompt's first `tokens` tokens; one request asks for them several times."""
        last = self._last
        if last is None or last[0] is not prompt or last[1] != block_size:
            keys = self._keys.of_prompt(prompt.tokens, prompt.namespace, block_size, prompt.media)
            last = self._last = (prompt, block_size, keys)
        return last[2][: tokens // block_size]

    def sketch(self, prompt: Prompt, step: int) -> Keys:
        """Keys of the prompt's prefixes after each `step` tokens."""
        last = self._last
        if last is None or last[0] is not prompt or step % last[1]:
            return self._keys.of_prompt(prompt.tokens, prompt.namespace, step, prompt.media)
        stride = step // last[1]
        return last[2][stride - 1 :: stride]

    # Lookup.

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column."""
        cached = np.zeros(self._columns + 1, dtype=np.int64)  # the last place takes what belongs to no column
        tokens = prompt.tokens
        for forest in self._places.forests.values():
            if not forest.heads or len(tokens) <= forest.block_size:
                continue
            keys = self._keys_of(prompt, len(tokens) - 1, forest.block_size)
            path = follow(forest.heads, keys.data)
            if path:
                blocks = leads(path, len(self._slots))
                np.maximum.at(cached, self._slots.columns, blocks * forest.block_size)
                self._add_layered(cached, path, forest.block_size)
        return Match(cached[:-1])

    def _add_layered(self, cached: NDArray[np.int64], path: Path, block_size: int) -> None:
        for state in self._layered.values():
            slots = [(tier, layer.slot) for tier, layer in sorted(state.layers.items())]
            tokens = weigh(layered_lead(slots, path), self._credits, block_size)
            cached[state.column] = max(cached[state.column], tokens)

    # Images.

    @property
    def secret(self) -> bytes:
        """What the prefix keys are made with."""
        return self._keys.secret

    @property
    def secret_id(self) -> bytes:
        """Images go from one index to another where this is equal."""
        return self._keys.secret_id

    def take_secret(self, secret: bytes) -> bool:
        """Make the prefix keys as another index does; False when this one holds something already."""
        if self._places.runs:
            return secret == self._keys.secret
        self._keys.take(secret)
        self._last = None
        return True

    def capture(self, rank: int) -> Iterator[Segment | None]:
        """What the rank holds now, in short steps; what was only assumed is left out."""
        layers = [LayerCapture(tier, layer, self._places.runs) for tier, layer in self._ranks[rank].layers.items()]
        return chain.from_iterable(layer.segments() for layer in layers)

    def restore(self, rank: int, segment: Segment, anchors: Anchors) -> None:
        """The rank holds the blocks of a segment too, all of which it did not hold before."""
        keys, hashes = words(segment.keys).tolist(), words(segment.hashes).tolist()
        offsets = words(segment.offsets, "I").tolist() or range(len(hashes))
        state, layer = self._ranks[rank], self._layer(rank, Tier(segment.tier))
        forest = self._places.forest(segment.block_size)
        where = self._places.behind(anchors.get(segment.before, NOWHERE), forest, segment.start, segment.before)
        for run, start, first, behind in self._places.spans(keys, where):
            held = slice(bisect_left(offsets, first), bisect_left(offsets, behind))
            for offset, hash_ in zip(offsets[held], hashes[held], strict=True):
                self._hold_one(state, layer, forest, run, start + offset - first, hash_)
            for key in anchors.keys() & set(keys[first:behind]):
                anchors[key] = run.id << OFFSET_BITS | start + keys.index(key) - first
            if not run.held:
                self._places.bury(run)
        layer.copies.update(segment.copies)
        if self.entries > self._max_blocks:
            self._evict()

    # Places.

    def _append(self, state: _Rank, layer: Layer, hash_: int, key: int, where: Where) -> bool:
        """What `_place_all` does with one block right behind all that the rank holds of a run, which is what decoding
        brings, in less time; False when the block is another one.
        """
        run, offset = where.run, where.offset + 1
        if run is None or run.islands is not None or len(state.layers) != 1 or hash_ in layer.places:
            return False
        if run.held.get(layer.slot) != offset:
            return False
        if offset < len(run.keys):
            if run.keys[offset] != key:
                return False
        elif key in where.forest.heads:
            return False
        else:
            run.keys.append(key)
        layer.places[hash_] = run.id << OFFSET_BITS | offset
        run.lengthen(layer.slot, offset + 1)
        self.entries += 1
        return True

    def _place_all(self, state: _Rank, layer: Layer, hashes: Sequence[int], keys: Sequence[int], where: Where) -> None:
        """Hold each block in its place."""
        for run, start, first, behind in self._places.spans(keys, where):
            self._hold(state, layer, where.forest, run, start, hashes[first:behind])

    def _hold(self, state: _Rank, layer: Layer, forest: Forest, run: Run, start: int, hashes: Sequence[int]) -> None:
        count, places = len(hashes), layer.places
        length = run.held.get(layer.slot)
        plain = len(state.layers) == 1 and run.islands is None and (length or 0) == start
        if plain and places.keys().isdisjoint(hashes) and (count == 1 or len(set(hashes)) == count):
            first = run.id << OFFSET_BITS | start
            places.update(zip(hashes, range(first, first + count), strict=True))
            run.lengthen(layer.slot, start + count)
            self.entries += count
            if length is None:
                layer.runs.add(run.id)
            return
        for offset, hash_ in enumerate(hashes, start):
            self._hold_one(state, layer, forest, run, offset, hash_)

    def _hold_one(self, state: _Rank, layer: Layer, forest: Forest, run: Run, offset: int, hash_: int) -> None:
        place = run.id << OFFSET_BITS | offset
        before = self._place_of(state, hash_)
        if before is not None and before != place:  # a hash without its parent in it (SGLang before 0.5.6)
            self._forget_hash(state, hash_)
            self._places.revive(run, forest)
        if hash_ in layer.places:
            layer.copies[hash_] = layer.copies.get(hash_, 0) + 1
            return
        held = run.holds(layer.slot, offset)
        if held and hash_ < 0:
            return
        layer.places[hash_] = place
        if held and layer.places.pop(~run.keys[offset], None) is not None:
            self.confirmed += 1
        elif held:
            layer.hashes[place] = layer.hashes.get(place, 0) + 1
        else:
            run.hold(layer.slot, offset, 1)
            layer.runs.add(run.id)
            self.entries += 1

    def _store_known(self, state: _Rank, rank: int, stored: Stored) -> Skip | None:
        known = [(hash_, place) for hash_ in stored.hashes if (place := self._place_of(state, hash_)) is not None]
        layer = self._layer(rank, stored.tier)
        for hash_, place in known:
            run, forest = self._places.runs[place >> OFFSET_BITS]
            self._hold_one(state, layer, forest, run, place & OFFSET_MASK, hash_)
        return None if known else Skip.NO_TOKENS

    def _remove(self, layer: Layer, hash_: int) -> None:
        more = layer.copies.get(hash_)
        if more:
            decrement(layer.copies, hash_, more)
            return
        place = layer.places.pop(hash_, None)
        if place is not None:
            self._release(layer, place)

    def _release(self, layer: Layer, place: int) -> None:
        """One hash less stands for the place."""
        more = layer.hashes.get(place)
        if more:
            decrement(layer.hashes, place, more)
            return
        run, offset = self._places.runs[place >> OFFSET_BITS][0], place & OFFSET_MASK
        run.release(layer.slot, offset)
        self.entries -= 1
        if layer.slot not in run.held:
            layer.runs.discard(run.id)
            self._places.bury(run)
        elif offset == len(run.keys) - 1:
            run.cut_tail()

    def _forget_hash(self, state: _Rank, hash_: int) -> None:
        for layer in state.layers.values():
            layer.copies.pop(hash_, None)
            self._remove(layer, hash_)

    def _drop(self, run_id: int, slot: int) -> None:
        run = self._places.runs[run_id][0]
        run.drop(slot)
        self._places.bury(run)

    def _evict(self) -> None:
        """Give up what the fullest rank stored last, some at a time: the search for it is not free."""
        layers = (layer for state in self._ranks.values() for layer in state.layers.values())
        fullest = max(layers, key=lambda layer: len(layer.places))
        while fullest.places and self.entries > self._max_blocks - _EVICTED_AT_ONCE:
            hash_, place = fullest.places.popitem()
            fullest.copies.pop(hash_, None)
            self._release(fullest, place)
            self.evicted += 1

    def _layer(self, rank: int, tier: Tier) -> Layer:
        state = self._ranks[rank]
        layer = state.layers.get(tier)
        if layer is None:
            layer = state.layers[tier] = Layer(self._slots.take(state.column if tier is Tier.GPU else NOWHERE))
            if tier is not Tier.GPU:
                self._layered[rank] = state
        return layer

    @staticmethod
    def _place_of(state: _Rank, hash_: int) -> int | None:
        for layer in state.layers.values():
            place = layer.places.get(hash_)
            if place is not None:
                return place
        return None
