"""Whether a process grows: its memory after each of many windows of equal work, and the slope through them."""

import statistics
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path


def own_bytes(pid: int) -> int:
    """The memory that is the process's own: what it has allocated and touched, without files and shared pages."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Anonymous:")[1].split()[0]) * 1024


def slope(measured: Sequence[int]) -> float:
    """Growth from one measurement to the next: the median over all pairs, which single steps of an allocator's
    arenas do not move (Theil and Sen).
    """
    pairs = combinations(enumerate(measured), 2)
    return statistics.median((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs)
