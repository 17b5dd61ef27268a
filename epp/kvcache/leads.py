"""How far each slot holds the beginning of a prompt, along the runs that the prompt follows."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from epp.kvcache.events import Tier
from epp.kvcache.runs import Run

Path = Sequence[tuple[Run, int]]
"""Runs along a prompt, and how many blocks of each it follows."""


def follow(heads: Mapping[int, Run], keys: memoryview) -> list[tuple[Run, int]]:
    """The runs along a prompt's prefix keys."""
    path = []
    done = 0
    while done < len(keys):
        run = heads.get(keys[done])
        if run is None:
            break
        matched = run.common(0, keys, done)
        path.append((run, matched))
        done += matched
    return path


def leads(path: Path, slots: int) -> NDArray[np.int64]:
    """Leading blocks that each of `slots` slots holds."""
    found = np.zeros(slots, dtype=np.int64)
    done = 0
    for run, matched in path:
        holders, lengths = run.holders()
        reach = np.minimum(lengths, matched)
        if done:
            here = found[holders] == done  # who holds all that came before
            if not here.any():
                break
            holders, reach = holders[here], reach[here]
        done += matched
        found[holders] += reach
    return found


def layered_lead(all_slots: Sequence[tuple[Tier, int]], path: Path) -> list[int]:
    """Leading blocks that a rank holds in its tiers, the nearest tier first; each block counts in the nearest one."""
    hits = [0] * len(Tier)
    for run, matched in path:
        slots = [(tier, slot) for tier, slot in all_slots if slot in run.held]
        counted = _walk_tiers(run, matched, slots) if run.islands else _stack_tiers(run, matched, slots)
        for tier, blocks in counted:
            hits[tier] += blocks
        if sum(blocks for _, blocks in counted) < matched:
            break
    return hits


def _stack_tiers(run: Run, matched: int, slots: list[tuple[Tier, int]]) -> list[tuple[Tier, int]]:
    """Without holes, a farther tier counts where it reaches beyond the nearer ones."""
    counted, reach = [], 0
    for tier, slot in slots:
        length = min(run.held[slot], matched)
        if length > reach:
            counted.append((tier, length - reach))
            reach = length
    return counted


def _walk_tiers(run: Run, matched: int, slots: list[tuple[Tier, int]]) -> list[tuple[Tier, int]]:
    counted = []
    for offset in range(matched):
        tier = next((tier for tier, slot in slots if run.holds(slot, offset)), None)
        if tier is None:
            break
        counted.append((tier, 1))
    return counted
