"""Where blocks have their places: all runs, found by their first key or by their number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from epp.kvcache.layers import NOWHERE
from epp.kvcache.runs import OFFSET_BITS, OFFSET_MASK, Run


@dataclass(slots=True)
class Forest:
    """All runs of one block size."""

    block_size: int
    heads: dict[int, Run] = field(default_factory=dict)
    """By first key."""


class Where(NamedTuple):
    """Behind which block others are placed."""

    forest: Forest
    run: Run | None
    offset: int
    blocks: int
    """Blocks before them."""
    key: int
    """Prefix key of what is before them."""


class Places:
    """Every block has one place, since the block before it has one; runs are never split."""

    def __init__(self) -> None:
        self.forests: dict[int, Forest] = {}
        """By block size."""
        self.runs: dict[int, tuple[Run, Forest]] = {}
        """By number."""
        self._next_run = 0

    def forest(self, block_size: int) -> Forest:
        """The runs of a block size."""
        forest = self.forests.get(block_size)
        if forest is None:
            forest = self.forests[block_size] = Forest(block_size)
        return forest

    def spans(self, keys: Sequence[int], where: Where) -> Iterator[tuple[Run, int, int, int]]:
        """Where each block's place is: along the run, in the run that begins with it, at its end, or in a new one.

        Gives a run, an offset in it, and the first of the keys that have their places from there on, and which is the
        first behind them. The caller holds blocks of a span, or buries its run, before it asks for the next one.
        """
        forest, run, offset = where.forest, where.run, where.offset
        done = 0
        while done < len(keys):
            along = run.common(offset + 1, keys, done) if run is not None else 0
            if not along:
                head = forest.heads.get(keys[done])
                if head is not None:
                    run, offset = head, NOWHERE
                    continue
                new = _unplaced(forest, keys[done:] if done else keys)
                along = len(new)
                if run is not None and offset + 1 == len(run.keys):
                    run.keys.extend(new)
                else:
                    before = keys[done - 1] if done else where.key
                    run, offset = self._new_run(forest, where.blocks + done, before, new), NOWHERE
            assert run is not None
            yield run, offset + 1, done, done + along
            offset += along
            done += along

    def behind(self, place: int, forest: Forest, blocks: int, key: int) -> Where:
        """Behind the block with the prefix key `key`, of which is known that it had `place`."""
        run, its_forest = self.runs.get(place >> OFFSET_BITS, (None, None)) if place != NOWHERE else (None, None)
        offset = place & OFFSET_MASK
        if run is None or its_forest is not forest or offset >= len(run.keys) or run.keys[offset] != key:
            return Where(forest, None, NOWHERE, blocks, key)
        return Where(forest, run, offset, blocks, key)

    def revive(self, run: Run, forest: Forest) -> None:
        """A buried run is held again."""
        self.runs[run.id] = (run, forest)
        forest.heads[run.keys[0]] = run

    def bury(self, run: Run) -> None:
        """Forget the run if nobody holds any of it."""
        if not run.held:
            _, forest = self.runs.pop(run.id)
            del forest.heads[run.keys[0]]

    def _new_run(self, forest: Forest, start: int, before: int, keys: Sequence[int]) -> Run:
        self._next_run += 1
        run = Run(self._next_run, start, before, keys)
        self.revive(run, forest)
        return run


def _unplaced(forest: Forest, keys: Sequence[int]) -> Sequence[int]:
    """The keys before the first that has a place already: its run outlived the one that it branched from."""
    if forest.heads.keys().isdisjoint(keys):
        return keys
    return keys[: next(i for i, key in enumerate(keys) if key in forest.heads)]
