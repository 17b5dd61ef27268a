"""The index of held blocks as compressed runs.

Prompts that begin alike share runs, so a lookup compares one key for each run and a few more where it leaves one. A
branch is a run of its own whose first key is found in `heads`; runs are never split. Each block has one place, since
the block before it has one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.kvcache.events import Removed, Skip, Stored, Tier
from epp.kvcache.keys import Keys, PrefixKeys
from epp.kvcache.leads import Path, follow, layered_lead, leads
from epp.kvcache.prefix_index import FULL_CREDIT, Match, weigh
from epp.kvcache.runs import OFFSET_BITS, OFFSET_MASK, Run
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt

_NOWHERE = -1
_EVICTED_AT_ONCE = 256


@dataclass(slots=True)
class _Forest:
    """All runs of one block size."""

    block_size: int
    heads: dict[int, Run] = field(default_factory=dict)


class _Layer:
    """What a rank holds in one tier. Most blocks have one copy under one hash; the dicts for more stay small."""

    __slots__ = ("copies", "hashes", "places", "runs", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.places: dict[int, int] = {}
        """Engine hash to place."""
        self.copies: dict[int, int] = {}
        """Copies beyond the first, by engine hash."""
        self.hashes: dict[int, int] = {}
        """Engine hashes beyond the first, by place."""
        self.runs: set[int] = set()


class _Where(NamedTuple):
    """Behind which block others are placed."""

    forest: _Forest
    run: Run | None
    offset: int
    blocks: int
    """Blocks before them."""


@dataclass(slots=True)
class _Rank:
    column: int
    layers: dict[Tier, _Layer] = field(default_factory=dict)


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
        self._forests: dict[int, _Forest] = {}
        self._runs: dict[int, tuple[Run, _Forest]] = {}
        self._next_run = 0
        self._ranks: dict[int, _Rank] = {}
        self._next_rank = 0
        self._layered: dict[int, _Rank] = {}
        self._slot_columns: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._free_slots: list[int] = []
        self._retired: deque[_Layer] = deque()
        self._columns = 0
        self._last: tuple[Prompt, int, Keys] | None = None
        self.entries = 0
        self.evicted = 0
        self.confirmed = 0
        """Stand-ins whose block an event has named since."""

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
            self._slot_columns[layer.slot] = _NOWHERE
            self.entries -= len(layer.places) - sum(layer.hashes.values())
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
                self._free_slots.append(self._retired.popleft().slot)
        return bool(self._retired)

    def blocks(self, rank: int) -> int:
        """Entries of the rank: different blocks, counted once for each tier."""
        return sum(len(layer.places) - sum(layer.hashes.values()) for layer in self._ranks[rank].layers.values())

    # Events.

    def store(self, rank: int, stored: Stored) -> Skip | None:
        """Add one copy of each block; the reason if they cannot be placed."""
        state = self._ranks[rank]
        if not stored.block_size:
            return self._store_known(state, rank, stored)
        if stored.parent is None:
            run, offset = None, _NOWHERE
            position, key = 0, self._keys.seed(namespace(stored.adapter, stored.salt))
        else:
            place = self._place(state, stored.parent)
            if place is None:
                return Skip.ORPHAN
            (run, forest), offset = self._runs[place >> OFFSET_BITS], place & OFFSET_MASK
            position, key = (run.start + offset + 1) * forest.block_size, run.keys[offset]
            if forest.block_size != stored.block_size:
                run, offset = None, _NOWHERE
        if position + len(stored.tokens) > self._keys.max_tokens:
            return Skip.TOO_LONG
        if position % stored.block_size:
            return Skip.SHAPE
        keys = self._keys.chain(key, position, stored.tokens, stored.block_size, stored.media)
        where = _Where(self._forest(stored.block_size), run, offset, position // stored.block_size)
        self._place_all(state, self._layer(rank, stored.tier), stored.hashes, keys, where)
        if self.entries > self._max_blocks:
            self._evict()
        return None

    def remove(self, rank: int, removed: Removed) -> None:
        """Take one copy of each known block."""
        layer = self._ranks[rank].layers.get(removed.tier)
        if layer is not None:
            for hash_ in removed.hashes:
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

    def _follow(self, rank: int, prompt: Prompt, tokens: int, block_size: int) -> tuple[list[int], _Where]:
        """Keys of the blocks behind those that the rank holds without a hole, and where the held ones end."""
        forest = self._forest(block_size)
        keys = self._keys_of(prompt, tokens, block_size)
        slot = self._layer(rank, Tier.GPU).slot
        where = _Where(forest, None, _NOWHERE, 0)
        for run, matched in follow(forest.heads, keys.data):
            length = min(run.held.get(slot, 0), matched)
            if length:
                where = _Where(forest, run, length - 1, where.blocks + length)
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

    # Lookup.

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column."""
        cached = np.zeros(self._columns + 1, dtype=np.int64)  # the last place takes what belongs to no column
        tokens = prompt.tokens
        for forest in self._forests.values():
            if not forest.heads or len(tokens) <= forest.block_size:
                continue
            keys = self._keys_of(prompt, len(tokens) - 1, forest.block_size)
            path = follow(forest.heads, keys.data)
            if path:
                blocks = leads(path, len(self._slot_columns))
                np.maximum.at(cached, self._slot_columns, blocks * forest.block_size)
                self._add_layered(cached, path, forest.block_size)
        return Match(cached[:-1])

    def _add_layered(self, cached: NDArray[np.int64], path: Path, block_size: int) -> None:
        for state in self._layered.values():
            slots = [(tier, layer.slot) for tier, layer in sorted(state.layers.items())]
            tokens = weigh(layered_lead(slots, path), self._credits, block_size)
            cached[state.column] = max(cached[state.column], tokens)

    # Places.

    def _place_all(
        self, state: _Rank, layer: _Layer, hashes: Sequence[int], keys: Sequence[int], where: "_Where"
    ) -> None:
        """Give each block its place: along the run, in the run that begins with it, at the run's end, in a new run."""
        forest, run, offset = where.forest, where.run, where.offset
        done = 0
        while done < len(keys):
            along = run.common(offset + 1, keys, done) if run is not None else 0
            if not along:
                head = forest.heads.get(keys[done])
                if head is not None:
                    run, offset = head, _NOWHERE
                    continue
                along = len(keys) - done
                if run is not None and offset + 1 == len(run.keys):
                    run.keys.extend(keys[done:])
                else:
                    run, offset = self._new_run(forest, where.blocks + done, keys[done:]), _NOWHERE
            assert run is not None
            self._hold(state, layer, forest, run, offset + 1, hashes[done : done + along])
            offset += along
            done += along

    def _hold(self, state: _Rank, layer: _Layer, forest: _Forest, run: Run, start: int, hashes: Sequence[int]) -> None:
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

    def _hold_one(self, state: _Rank, layer: _Layer, forest: _Forest, run: Run, offset: int, hash_: int) -> None:
        place = run.id << OFFSET_BITS | offset
        before = self._place(state, hash_)
        if before is not None and before != place:  # a hash without its parent in it (SGLang before 0.5.6)
            self._forget_hash(state, hash_)
            self._runs[run.id] = (run, forest)
            forest.heads[run.keys[0]] = run
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
        known = [(hash_, place) for hash_ in stored.hashes if (place := self._place(state, hash_)) is not None]
        layer = self._layer(rank, stored.tier)
        for hash_, place in known:
            run, forest = self._runs[place >> OFFSET_BITS]
            self._hold_one(state, layer, forest, run, place & OFFSET_MASK, hash_)
        return None if known else Skip.NO_TOKENS

    def _remove(self, layer: _Layer, hash_: int) -> None:
        more = layer.copies.get(hash_)
        if more:
            _decrement(layer.copies, hash_, more)
            return
        place = layer.places.pop(hash_, None)
        if place is not None:
            self._release(layer, place)

    def _release(self, layer: _Layer, place: int) -> None:
        """One hash less stands for the place."""
        more = layer.hashes.get(place)
        if more:
            _decrement(layer.hashes, place, more)
            return
        run, offset = self._runs[place >> OFFSET_BITS][0], place & OFFSET_MASK
        run.release(layer.slot, offset)
        self.entries -= 1
        if layer.slot not in run.held:
            layer.runs.discard(run.id)
            self._bury(run)
        elif offset == len(run.keys) - 1:
            run.cut_tail()

    def _forget_hash(self, state: _Rank, hash_: int) -> None:
        for layer in state.layers.values():
            layer.copies.pop(hash_, None)
            self._remove(layer, hash_)

    def _drop(self, run_id: int, slot: int) -> None:
        run = self._runs[run_id][0]
        run.drop(slot)
        self._bury(run)

    def _bury(self, run: Run) -> None:
        if not run.held:
            _, forest = self._runs.pop(run.id)
            del forest.heads[run.keys[0]]

    def _evict(self) -> None:
        """Give up what the fullest rank stored last, some at a time: the search for it is not free."""
        layers = (layer for state in self._ranks.values() for layer in state.layers.values())
        fullest = max(layers, key=lambda layer: len(layer.places))
        while fullest.places and self.entries > self._max_blocks - _EVICTED_AT_ONCE:
            hash_, place = fullest.places.popitem()
            fullest.copies.pop(hash_, None)
            self._release(fullest, place)
            self.evicted += 1

    def _new_run(self, forest: _Forest, start: int, keys: Sequence[int]) -> Run:
        self._next_run += 1
        run = Run(self._next_run, start, keys)
        self._runs[run.id] = (run, forest)
        forest.heads[keys[0]] = run
        return run

    def _forest(self, block_size: int) -> _Forest:
        forest = self._forests.get(block_size)
        if forest is None:
            forest = self._forests[block_size] = _Forest(block_size)
        return forest

    def _layer(self, rank: int, tier: Tier) -> _Layer:
        state = self._ranks[rank]
        layer = state.layers.get(tier)
        if layer is None:
            layer = state.layers[tier] = _Layer(self._new_slot(state.column if tier is Tier.GPU else _NOWHERE))
            if tier is not Tier.GPU:
                self._layered[rank] = state
        return layer

    def _new_slot(self, column: int) -> int:
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = len(self._slot_columns)
            self._slot_columns = np.append(self._slot_columns, np.full(max(slot, 16), _NOWHERE, dtype=np.intp))
            self._free_slots.extend(range(len(self._slot_columns) - 1, slot, -1))
        self._slot_columns[slot] = column
        return slot

    @staticmethod
    def _place(state: _Rank, hash_: int) -> int | None:
        for layer in state.layers.values():
            place = layer.places.get(hash_)
            if place is not None:
                return place
        return None


def _decrement(counts: dict[int, int], key: int, count: int) -> None:
    if count == 1:
        del counts[key]
    else:
        counts[key] = count - 1
