"""Blocks that a rank is taken to hold though no event has said so, and until when."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from epp.kvcache.events import Removed
from epp.kvcache.prefix_index import BlockIndex
from epp.prompts.prompt import Prompt

_EXPIRED_AT_ONCE = 512
"""Blocks that are given up without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedLimits:
    """How long, and how many."""

    overlay_seconds: float = 30.0
    """Until an event must have named the blocks of a prompt that was sent."""
    kept_seconds: float = 600.0
    """Until blocks that the engine reported, or that a rank without events must hold, are believed evicted."""
    worker_blocks: int = 8192
    """Blocks of a worker's cache: what it held before the latest so many blocks counts as evicted."""


@dataclass(slots=True)
class AssumedCounts:
    """What became of assumptions."""

    assumed: int = 0
    expired: int = 0
    """Never named by an event, or out of the worker's size."""


class Assumed:
    """The assumptions of one rank.

    `expect` is for a prompt on its way: the engine will hold it as soon as it is scheduled, and the event comes later.
    `keep` is for what the engine said it had, or must have: the least recently kept go first, deeper blocks before
    the ones that they hang on.
    """

    def __init__(self, index: BlockIndex, rank: int, limits: AssumedLimits) -> None:
        self._index = index
        self._rank = rank
        self._limits = limits
        self._expected: deque[tuple[float, list[int]]] = deque()
        self._kept: OrderedDict[int, float] = OrderedDict()
        self.worker_blocks = limits.worker_blocks
        """Blocks of this worker's cache; whoever learns better may change it, and set `size_known`."""
        self.size_known = False
        self.counts = AssumedCounts()

    def expect(self, prompt: Prompt, block_size: int, now: float) -> None:
        """All full blocks of `prompt` will be there soon."""
        stand_ins = self._assume(prompt, len(prompt.tokens), block_size)
        if stand_ins:
            self._expected.append((now + self._limits.overlay_seconds, stand_ins))

    def keep(self, prompt: Prompt, tokens: int, block_size: int, now: float) -> None:
        """The full blocks of the first `tokens` tokens are there."""
        self._assume(prompt, tokens, block_size)
        deadline = now + self._limits.kept_seconds
        for stand_in in reversed(self._index.stand_ins(prompt, tokens, block_size)):
            self._kept[stand_in] = deadline
            self._kept.move_to_end(stand_in)
        excess = len(self._kept) - self.worker_blocks
        if self.size_known:  # what is held beyond its size is long gone, and events have not said so of these alone
            excess = max(excess, self._index.blocks(self._rank) - self.worker_blocks)
        self._remove([self._kept.popitem(last=False)[0] for _ in range(min(excess, len(self._kept)))])

    def refute(self, prompt: Prompt, tokens: int, block_size: int) -> None:
        """The engine had no more than the first `tokens` tokens of `prompt`."""
        stand_ins = self._index.stand_ins(prompt, len(prompt.tokens), block_size)[tokens // block_size :]
        self._remove([stand_in for stand_in in stand_ins if self._kept.pop(stand_in, None) is not None])

    def expire(self, now: float) -> bool:
        """Give up some of what was not confirmed in time; whether more is due."""
        if self._expected and self._expected[0][0] <= now:
            stand_ins = self._expected.popleft()[1]
            self._remove([stand_in for stand_in in stand_ins if stand_in not in self._kept])
            return True
        due: list[int] = []
        while len(due) < _EXPIRED_AT_ONCE and self._kept and next(iter(self._kept.values())) <= now:
            due.append(self._kept.popitem(last=False)[0])
        self._remove(due)
        return bool(due)

    def clear(self) -> None:
        """The rank holds nothing, and the index knows."""
        self._expected.clear()
        self._kept.clear()

    def _assume(self, prompt: Prompt, tokens: int, block_size: int) -> list[int]:
        stand_ins = self._index.assume(self._rank, prompt, tokens, block_size)
        self.counts.assumed += len(stand_ins)
        return stand_ins

    def _remove(self, stand_ins: Sequence[int]) -> None:
        if stand_ins:
            before = self._index.blocks(self._rank)
            self._index.remove(self._rank, Removed(list(stand_ins)))
            self.counts.expired += before - self._index.blocks(self._rank)
