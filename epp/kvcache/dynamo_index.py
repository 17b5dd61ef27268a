"""An index of blocks that are known by the hash of their tokens alone, as Dynamo's event plane names them."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.kvcache.events import Removed, Skip, Stored
from epp.kvcache.prefix_index import BlockIndex, Match
from epp.prompts.namespace import parts
from epp.prompts.prompt import Prompt

_SEED = 1337
_SALT_SEED = 1
_MASK = (1 << 64) - 1
_WORDS = 2


def tokens_hashes(prompt: Prompt, block_size: int) -> NDArray[np.uint64]:
    """Dynamo's hash of each full block: XXH3-64 of its token ids as 32-bit little-endian words.

    Adapter and salt change the seed: 1337 + XXH3-64(adapter, seed 0) + XXH3-64(salt, seed 1), absent ones being 0.
    Where an image begins the hashes end: those behind it need Dynamo's own ids of its objects.
    """
    adapter, salt = parts(prompt.namespace)
    seed = _SEED
    seed += xxhash.xxh3_64_intdigest(adapter.encode(), seed=0) if adapter else 0
    seed += xxhash.xxh3_64_intdigest(salt.encode(), seed=_SALT_SEED) if salt else 0
    seed &= _MASK
    end = min((item.offset for item in prompt.media), default=len(prompt.tokens))
    blocks = min(end, len(prompt.tokens)) // block_size
    raw = prompt.tokens[: blocks * block_size].astype("<u4", copy=False).tobytes()
    step = 4 * block_size
    digest = xxhash.xxh3_64_intdigest
    hashes = (digest(raw[start : start + step], seed) for start in range(0, len(raw), step))
    return np.fromiter(hashes, dtype=np.uint64, count=blocks)


class DynamoIndex:
    """The same runs, over tokens hashes in the place of tokens: each is two 32-bit words of a sequence.

    `block_size` is what the workers were started with; the events do not tell it.
    """

    def __init__(self, runs: BlockIndex, block_size: int) -> None:
        self._runs = runs
        self._block_size = block_size
        self._last: tuple[Prompt, Prompt] | None = None

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column."""
        blocks = max(0, len(prompt.tokens) - 1) // self._block_size
        # One word more, since the runs never count the end of a prompt.
        words = np.append(self._words(prompt).tokens[: blocks * _WORDS], np.uint32(0))
        return Match(self._runs.match(Prompt(tokens=words)).cached_tokens * self._block_size // _WORDS)

    def open(self, column: int) -> int:
        """A new rank."""
        return self._runs.open(column)

    def close(self, rank: int) -> None:
        """Forget the rank."""
        self._runs.close(rank)

    def clear(self, rank: int) -> None:
        """The rank holds nothing from now on."""
        self._runs.clear(rank)

    def store(self, rank: int, stored: Stored) -> Skip | None:
        """The rank holds the blocks; their tokens are words of tokens hashes."""
        return self._runs.store(rank, stored)

    def remove(self, rank: int, removed: Removed) -> None:
        """The rank lost the blocks."""
        self._runs.remove(rank, removed)

    def assume(self, rank: int, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Take the rank to hold the beginning of a prompt."""
        words = self._words(prompt)
        return self._runs.assume(rank, words, self._length(words, tokens, block_size), _WORDS)

    def stand_ins(self, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        """Stand-ins for the hashes of the beginning of a prompt."""
        words = self._words(prompt)
        return self._runs.stand_ins(words, self._length(words, tokens, block_size), _WORDS)

    def name(self, rank: int, prompt: Prompt, tokens: int, block_size: int, hash_: int) -> None:
        """The engine's hash of the block that ends the prompt's first `tokens` tokens."""
        words = self._words(prompt)
        self._runs.name(rank, words, self._length(words, tokens, block_size), _WORDS, hash_)

    def blocks(self, rank: int) -> int:
        """Entries of the rank."""
        return self._runs.blocks(rank)

    def sweep(self, steps: int) -> bool:
        """Take back memory."""
        return self._runs.sweep(steps)

    def _words(self, prompt: Prompt) -> Prompt:
        if self._last is None or self._last[0] is not prompt:
            self._last = prompt, Prompt(tokens=tokens_hashes(prompt, self._block_size).view(np.uint32))
        return self._last[1]

    @staticmethod
    def _length(words: Prompt, tokens: int, block_size: int) -> int:
        return min(len(words.tokens), tokens // block_size * _WORDS)
