"""Runs: unbranched chains of blocks, and which slots hold how much of each."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

OFFSET_BITS = 20
"""A place is `run id << OFFSET_BITS | offset`, one small integer for each held block."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1

_MANY = 16
"""Holders from which their arrays are kept for the next lookup."""

Holders = tuple[NDArray[np.int64], NDArray[np.int64]]


class Run:
    """Consecutive blocks, named by their prefix keys.

    A slot holds the first `held[slot]` blocks, and beyond a hole those whose offsets are in `islands[slot]`. A prefix
    key stands for all that precedes it, so one equal key proves the whole run up to there equal.
    """

    __slots__ = ("_holders", "_shared", "before", "held", "id", "islands", "keys", "start")

    def __init__(self, run_id: int, start: int, before: int, keys: Sequence[int]) -> None:
        self.id = run_id
        self.start = start
        """Blocks before the first one."""
        self.before = before
        """Prefix key of what precedes."""
        self._shared = False
        self.keys = array("Q", keys)
        self.held: dict[int, int] = {}
        self.islands: dict[int, set[int]] | None = None
        self._holders: Holders | None = None

    def common(self, start: int, keys: Sequence[int] | memoryview, first: int) -> int:
        """How many keys from offset `start` on equal those of `keys` from `first` on."""
        mine = self.keys
        behind = min(len(mine) - start, len(keys) - first)
        if behind <= 0 or mine[start] != keys[first]:
            return 0
        if mine[start + behind - 1] == keys[first + behind - 1]:
            return behind
        equal, unequal = 0, behind - 1
        while unequal - equal > 1:
            middle = (equal + unequal) // 2
            if mine[start + middle] == keys[first + middle]:
                equal = middle
            else:
                unequal = middle
        return unequal

    def holders(self) -> Holders:
        """The slots and how many leading blocks each holds."""
        if self._holders is not None:
            return self._holders
        count = len(self.held)
        slots = np.fromiter(self.held.keys(), dtype=np.int64, count=count)
        holders = slots, np.fromiter(self.held.values(), dtype=np.int64, count=count)
        if count >= _MANY:
            self._holders = holders
        return holders

    def lengthen(self, slot: int, length: int) -> None:
        """The slot, which has no islands here, holds the first `length` blocks."""
        self.held[slot] = length
        self._holders = None

    def holds(self, slot: int, offset: int) -> bool:
        """Whether the slot holds the block at `offset`."""
        if offset < self.held.get(slot, 0):
            return True
        return self.islands is not None and offset in self.islands.get(slot, ())

    def hold(self, slot: int, start: int, count: int) -> None:
        """The slot holds `count` blocks from `start` on, none of which it held before."""
        self._holders = None
        length = self.held.get(slot, 0)
        if start != length:
            self._add_island(slot, start, start + count)
            self.held[slot] = length
            return
        length += count
        if self.islands is not None and slot in self.islands:
            islands = self.islands[slot]
            while length in islands:
                islands.remove(length)
                length += 1
            self._tidy(slot)
        self.held[slot] = length

    def release(self, slot: int, offset: int) -> None:
        """The slot no longer holds the block at `offset`, which it did."""
        self._holders = None
        length = self.held[slot]
        if offset == length - 1:
            length = offset
        elif offset < length:
            self._add_island(slot, offset + 1, length)
            length = offset
        elif self.islands is not None:
            self.islands[slot].discard(offset)
            self._tidy(slot)
        if length or (self.islands is not None and slot in self.islands):
            self.held[slot] = length
        else:
            del self.held[slot]

    def drop(self, slot: int) -> None:
        """The slot holds nothing here."""
        self._holders = None
        self.held.pop(slot, None)
        if self.islands is not None:
            self.islands.pop(slot, None)
            self._tidy(slot)

    def cut_tail(self) -> None:
        """Give up keys at the end that its only slot has left; a run with several slots keeps them."""
        if len(self.held) == 1 and self.islands is None:
            if self._shared:
                self.keys, self._shared = self.keys[:], False
            del self.keys[next(iter(self.held.values())) :]

    def share(self) -> "array[int]":
        """The keys; those that are there now stay in this array whatever happens to the run."""
        self._shared = True
        return self.keys

    def _add_island(self, slot: int, start: int, end: int) -> None:
        if self.islands is None:
            self.islands = {}
        self.islands.setdefault(slot, set()).update(range(start, end))

    def _tidy(self, slot: int) -> None:
        if self.islands is not None:
            if not self.islands.get(slot, True):
                del self.islands[slot]
            if not self.islands:
                self.islands = None
