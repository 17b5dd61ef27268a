"""The narrow interface of the KV-block index: who holds how much of a prompt's beginning."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.kvcache.events import Removed, Skip, Stored
from epp.prompts.prompt import Prompt

FULL_CREDIT = (1.0, 1.0, 1.0, 1.0)
"""Share of a token's work that a hit in each tier saves: every tier as good as the GPU."""


def weigh(blocks: Sequence[int], credits_: Sequence[float], block_size: int) -> int:
    """Tokens that hits are worth, by their number in each tier."""
    return int(block_size * sum(count * credit for count, credit in zip(blocks, credits_, strict=True)))


class Match(msgspec.Struct, frozen=True):
    """How much of one prompt each column holds; arrays are indexed by pool column and may be shorter than the pool."""

    cached_tokens: NDArray[np.int64]
    """Leading tokens that the worker would not compute again, already capped as engines do: never the whole prompt."""


class PrefixIndex(Protocol):
    """What scheduling asks of the index."""

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column; zeros for a prompt without tokens."""


class BlockIndex(PrefixIndex, Protocol):
    """What the events of ranks do to the index. A rank is a handle from `open`; several may share a column."""

    def open(self, column: int) -> int:
        """A new rank behind the endpoint of `column`, holding nothing."""

    def close(self, rank: int) -> None:
        """Forget the rank; its column holds none of its blocks from now on."""

    def clear(self, rank: int) -> None:
        """The rank holds nothing from now on."""

    def store(self, rank: int, stored: Stored) -> Skip | None:
        """The rank holds one more copy of each block; the reason if the blocks cannot be placed."""

    def remove(self, rank: int, removed: Removed) -> None:
        """The rank holds one copy less of each block that it is known to hold."""

    def assume(self, rank: int, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Take the rank to hold the full blocks of the prompt's first `tokens` tokens.

        Returns stand-ins for the hashes of those that it was not known to hold, in order; `remove` takes them. A
        stand-in gives way to the engine's own hash when an event names the block.
        """

    def stand_ins(self, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Stand-ins for the hashes of the full blocks of the prompt's first `tokens` tokens, held or not."""

    def name(self, rank: int, prompt: Prompt, tokens: int, block_size: int, hash_: int) -> None:
        """The engine's hash of the block that ends the prompt's first `tokens` tokens, all of which it holds."""

    def blocks(self, rank: int) -> int:
        """Entries of the rank: different blocks, counted once for each tier."""

    def sweep(self, steps: int) -> bool:
        """Take back memory of cleared ranks, `steps` entries at most; False when none is left."""
