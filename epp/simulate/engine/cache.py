"""The block cache: paged KV blocks with prefix reuse and LRU eviction, as vLLM's block pool keeps them.

What it shares with vLLM, because a picker can see it: a prompt's last token is always computed; equal content
computed twice lives in two blocks, each with its own store and removal; a freed sequence gives up its tail first.
"""

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Namespace:
    """What makes equal tokens different content."""

    lora: str | None = None
    salt: str | None = None

    def root(self) -> bytes:
        """The parent of a first block; its own form, so that no two namespaces share a chain."""
        text = f"{len(self.lora or '')}:{self.lora or ''}:{self.salt or ''}"
        return hashlib.blake2b(text.encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one sequence became reusable."""

    hashes: tuple[int, ...]
    parent: int | None
    tokens: list[int]
    namespace: Namespace
    first: bool
    """Whether the span starts at the sequence's first block."""


@dataclass(frozen=True, slots=True)
class Removed:
    """One physical block lost its content."""

    hash: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache was reset."""


CacheEvent = Stored | Removed | Cleared


@dataclass(slots=True)
class Sequence:
    """One request's tokens and the blocks that hold their KV; `computed` tokens have KV."""

    tokens: list[int]
    block_size: int
    namespace: Namespace = field(default_factory=Namespace)
    keys: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    stored_blocks: int = 0
    promised: int = 0
    """Blocks that it may still take for its answer."""

    def extend_keys(self) -> list[int]:
        """Chained hashes of all full blocks, computed as far as the tokens reach."""
        size = self.block_size
        parent = self.keys[-1].to_bytes(8, "big") if self.keys else self.namespace.root()
        for start in range(len(self.keys) * size, len(self.tokens) - size + 1, size):
            content = array("I", self.tokens[start : start + size]).tobytes()
            parent = hashlib.blake2b(parent + content, digest_size=8).digest()
            self.keys.append(int.from_bytes(parent, "big"))
        return self.keys


@dataclass(frozen=True, slots=True)
class Resident:
    """One content in the cache, and in how many blocks."""

    hash: int
    parent: int | None
    tokens: tuple[int, ...]
    namespace: Namespace
    copies: int


@dataclass(slots=True)
class _Content:
    parent: int | None
    tokens: tuple[int, ...]
    namespace: Namespace
    holders: dict[int, None] = field(default_factory=dict)


class BlockCache:
    """`blocks` physical blocks of `block_size` tokens."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.events: list[CacheEvent] = []
        """What happened since the caller last took and cleared it."""
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._promised = 0
        self._users = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._contents: dict[int, _Content] = {}

    @property
    def used(self) -> int:
        """Blocks that running sequences hold."""
        return self.blocks - len(self._free)

    def begin(self, sequence: Sequence, max_tokens: int) -> int | None:
        """Give `sequence` blocks for all its tokens, and promise those for `max_tokens` more.

        Returns how many leading tokens need no computation, or None when too few blocks are free now.
        """
        hits = self.hits(sequence)
        wanted = -(-len(sequence.tokens) // self.block_size) - len(hits)
        later = -(-(len(sequence.tokens) + max_tokens) // self.block_size) - len(hits) - wanted
        free = len(self._free) - self._promised - sum(not self._users[block] for block in hits)
        if wanted + later > free:
            return None
        sequence.promised = later
        self._promised += later
        for block in hits:
            self._use(block)
        sequence.blocks = [*hits, *(self._take() for _ in range(wanted))]
        sequence.stored_blocks = len(hits)
        sequence.computed = len(hits) * self.block_size
        return sequence.computed

    def hits(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the beginning of `sequence`, never its last token."""
        found = []
        for key in sequence.extend_keys()[: (len(sequence.tokens) - 1) // self.block_size]:
            content = self._contents.get(key)
            if content is None:
                break
            found.append(next(iter(content.holders)))
        return found

    def store(self, sequence: Sequence, computed: int) -> None:
        """`computed` tokens of `sequence` have KV now: its newly full blocks become reusable."""
        sequence.computed = computed
        while len(sequence.blocks) * self.block_size < computed:
            sequence.blocks.append(self._take())
            sequence.promised -= 1
            self._promised -= 1
        first, full = sequence.stored_blocks, computed // self.block_size
        if full <= first:
            return
        keys = sequence.extend_keys()
        parent = keys[first - 1] if first else None
        size = self.block_size
        for i in range(first, full):
            tokens = tuple(sequence.tokens[i * size : (i + 1) * size])
            before = keys[i - 1] if i else None
            content = self._contents.setdefault(keys[i], _Content(before, tokens, sequence.namespace))
            content.holders[sequence.blocks[i]] = None
            self._hash_of[sequence.blocks[i]] = keys[i]
        sequence.stored_blocks = full
        span = sequence.tokens[first * size : full * size]
        self.events.append(Stored(tuple(keys[first:full]), parent, span, sequence.namespace, first == 0))

    def end(self, sequence: Sequence) -> None:
        """Free the blocks of `sequence`; their content stays until they are needed, the tail going first."""
        for block in reversed(sequence.blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
        sequence.blocks = []
        self._promised -= sequence.promised
        sequence.promised = 0

    def clear(self) -> bool:
        """Forget all content; refused while a sequence runs."""
        if self.used:
            return False
        self._hash_of = [None] * self.blocks
        self._contents.clear()
        self.events.append(Cleared())
        return True

    def residents(self) -> list[Resident]:
        """The true content, for tests that compare it with what a picker believes."""
        return [
            Resident(key, content.parent, content.tokens, content.namespace, len(content.holders))
            for key, content in self._contents.items()
        ]

    def _use(self, block: int) -> None:
        if not self._users[block]:
            del self._free[block]
        self._users[block] += 1

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._users[block] = 1
        key = self._hash_of[block]
        if key is not None:
            self._hash_of[block] = None
            content = self._contents[key]
            del content.holders[block]
            if not content.holders:
                del self._contents[key]
            self.events.append(Removed(key))
        return block
