"""The index as plain dicts: slow and easy to believe. Tests compare every other index with it."""

from dataclasses import dataclass, field

import numpy as np

from epp.kvcache.events import Removed, Skip, Stored, Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.prefix_index import FULL_CREDIT, Match, weigh
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt


@dataclass(slots=True)
class _Block:
    key: int
    end: int
    copies: list[int] = field(default_factory=lambda: [0] * len(Tier))


@dataclass(slots=True)
class _Rank:
    column: int
    blocks: dict[int, _Block] = field(default_factory=dict)
    """By engine hash."""
    held: dict[int, dict[int, _Block]] = field(default_factory=dict)
    """By prefix key, then engine hash: one block may have two hashes."""
    block_sizes: set[int] = field(default_factory=set)


class NaiveIndex:
    """Who holds what, by rank.

    `tier_credits` says what share of a token's work a hit in each tier saves. Engines recompute at least the last
    token of a prompt, so a match stops at the last block boundary before it.
    """

    def __init__(self, keys: PrefixKeys, *, tier_credits: tuple[float, ...] = FULL_CREDIT) -> None:
        self._keys = keys
        self._credits = tier_credits
        self._ranks: dict[int, _Rank] = {}
        self._next_rank = 0

    def open(self, column: int) -> int:
        """A new rank behind the endpoint of `column`."""
        self._next_rank += 1
        self._ranks[self._next_rank] = _Rank(column)
        return self._next_rank

    def close(self, rank: int) -> None:
        """Forget the rank."""
        del self._ranks[rank]

    def clear(self, rank: int) -> None:
        """The rank holds nothing from now on."""
        self._ranks[rank] = _Rank(self._ranks[rank].column)

    def blocks(self, rank: int) -> int:
        """Entries of the rank: different blocks, counted once for each tier."""
        held = self._ranks[rank].held.values()
        return sum(any(block.copies[tier] for block in holders.values()) for holders in held for tier in Tier)

    def sweep(self, steps: int) -> bool:  # noqa: ARG002 - the interface
        """Nothing is left to take back."""
        return False

    def store(self, rank: int, stored: Stored) -> Skip | None:
        """Add one copy of each block."""
        state = self._ranks[rank]
        if not stored.block_size:
            return self._store_known(state, stored)
        if stored.parent is None:
            key, position = self._keys.seed(namespace(stored.adapter, stored.salt)), 0
        elif stored.parent in state.blocks:
            parent = state.blocks[stored.parent]
            key, position = parent.key, parent.end
        else:
            return Skip.ORPHAN
        if position + len(stored.tokens) > self._keys.max_tokens:
            return Skip.TOO_LONG
        if position % stored.block_size:
            return Skip.SHAPE
        state.block_sizes.add(stored.block_size)
        keys = self._keys.chain(key, position, stored.tokens, stored.block_size, stored.media)
        for hash_, block_key in zip(stored.hashes, keys, strict=True):
            position += stored.block_size
            self._add(state, hash_, block_key, position, stored.tier)
        return None

    def remove(self, rank: int, removed: Removed) -> None:
        """Take one copy of each known block."""
        state = self._ranks[rank]
        for hash_ in removed.hashes:
            block = state.blocks.get(hash_)
            if block is not None and block.copies[removed.tier]:
                block.copies[removed.tier] -= block.copies[removed.tier] if removed.whole else 1
                if not any(block.copies):
                    self._drop(state, hash_)

    def assume(self, rank: int, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Take the rank to hold the blocks of the prompt's first `tokens` tokens; stand-ins for new ones."""
        state = self._ranks[rank]
        state.block_sizes.add(block_size)
        keys = self._keys.of_prompt(prompt.tokens[:tokens], prompt.namespace, block_size, prompt.media).tolist()
        known = next((i for i, key in enumerate(keys) if not self._on_gpu(state, key)), len(keys))
        for i in range(known, len(keys)):
            if not self._on_gpu(state, keys[i]):
                self._add(state, ~keys[i], keys[i], (i + 1) * block_size, Tier.GPU)
        return [~key for key in keys[known:]]

    def stand_ins(self, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Stand-ins for the hashes of the prompt's first full blocks, held or not."""
        keys = self._keys.of_prompt(prompt.tokens[:tokens], prompt.namespace, block_size, prompt.media)
        return [~key for key in keys.tolist()]

    def name(self, rank: int, prompt: Prompt, tokens: int, block_size: int, hash_: int) -> None:
        """Name the last block of the prompt's first `tokens` tokens."""
        self.assume(rank, prompt, tokens, block_size)
        keys = self._keys.of_prompt(prompt.tokens[:tokens], prompt.namespace, block_size, prompt.media).tolist()
        if keys:
            self._add(self._ranks[rank], hash_, keys[-1], len(keys) * block_size, Tier.GPU)

    @staticmethod
    def _on_gpu(state: _Rank, key: int) -> bool:
        return any(block.copies[Tier.GPU] for block in state.held.get(key, {}).values())

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column, by a walk over every rank's blocks."""
        cached = np.zeros(max((rank.column + 1 for rank in self._ranks.values()), default=0), dtype=np.int64)
        for state in self._ranks.values():
            for block_size in state.block_sizes:
                tokens = self._leading(state, prompt, block_size)
                cached[state.column] = max(cached[state.column], tokens)
        return Match(cached)

    def _leading(self, state: _Rank, prompt: Prompt, block_size: int) -> int:
        usable = prompt.tokens[: max(len(prompt.tokens) - 1, 0)]
        hits = [0] * len(Tier)
        for key in self._keys.of_prompt(usable, prompt.namespace, block_size, prompt.media).tolist():
            holders = state.held.get(key)
            if not holders:
                break
            best = min(tier for block in holders.values() for tier in Tier if block.copies[tier])
            hits[best] += 1
        return weigh(hits, self._credits, block_size)

    def _store_known(self, state: _Rank, stored: Stored) -> Skip | None:
        known = [state.blocks[hash_] for hash_ in stored.hashes if hash_ in state.blocks]
        for block in known:
            block.copies[stored.tier] += 1
        return None if known else Skip.NO_TOKENS

    def _add(self, state: _Rank, hash_: int, key: int, end: int, tier: Tier) -> None:
        block = state.blocks.get(hash_)
        if block is not None and block.key != key:  # a hash without its parent in it (SGLang before 0.5.6)
            self._drop(state, hash_)
            block = None
        if hash_ >= 0 and tier is Tier.GPU and ~key in state.blocks:
            self._drop(state, ~key)
        if block is None:
            block = state.blocks[hash_] = _Block(key, end)
            state.held.setdefault(key, {})[hash_] = block
        block.copies[tier] += 1

    def _drop(self, state: _Rank, hash_: int) -> None:
        block = state.blocks.pop(hash_)
        holders = state.held[block.key]
        del holders[hash_]
        if not holders:
            del state.held[block.key]
