"""What one rank holds, tier by tier, and the numbered slots that runs know holders by."""

import numpy as np
from numpy.typing import NDArray

NOWHERE = -1


class Layer:
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

    @property
    def entries(self) -> int:
        """Different blocks."""
        return len(self.places) - sum(self.hashes.values())


class Slots:
    """Slot numbers, each of one layer; the slot of a GPU layer belongs to its endpoint's column."""

    def __init__(self) -> None:
        self.columns: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        """Column by slot; NOWHERE: the slot counts for no column."""
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, column: int) -> int:
        """A slot that nobody else has."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self.columns)
            self.columns = np.append(self.columns, np.full(max(slot, 16), NOWHERE, dtype=np.intp))
            self._free.extend(range(len(self.columns) - 1, slot, -1))
        self.columns[slot] = column
        return slot

    def hide(self, slot: int) -> None:
        """The slot counts for no column from now on."""
        self.columns[slot] = NOWHERE

    def give_back(self, slot: int) -> None:
        """No run knows the slot any more."""
        self._free.append(slot)


def decrement(counts: dict[int, int], key: int, count: int) -> None:
    """One less than `count` for the key, which leaves at zero."""
    if count == 1:
        del counts[key]
    else:
        counts[key] = count - 1
