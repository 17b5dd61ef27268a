"""Prompts and who holds how much of each: the same for our index and for its baseline. Standard library only."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_SIZE = 16
_SHARED = 4
"""All prompts begin alike for one part in so many."""


@dataclass(frozen=True)
class Holding:
    """A worker holds the first blocks of a prompt."""

    worker: int
    prompt: int
    blocks: int


@dataclass(frozen=True)
class Workload:
    """Prompts of `blocks` blocks, of which every worker holds a random beginning."""

    blocks: int
    workers: int
    prompts: int = 4

    def tokens(self) -> list[list[int]]:
        """Token ids of each prompt, one token longer than its blocks: an engine computes the last one anyway."""
        draw = random.Random(self.blocks)
        shared = [draw.randrange(129_000) for _ in range(self.blocks * BLOCK_SIZE // _SHARED)]
        rest = self.blocks * BLOCK_SIZE - len(shared) + 1
        return [shared + [draw.randrange(129_000) for _ in range(rest)] for _ in range(self.prompts)]

    def holdings(self) -> Iterator[Holding]:
        """Who holds how much, in a mixed order."""
        draw = random.Random(self.workers)
        pairs = [(worker, prompt) for worker in range(self.workers) for prompt in range(self.prompts)]
        draw.shuffle(pairs)
        for worker, prompt in pairs:
            yield Holding(worker, prompt, draw.randrange(1, self.blocks + 1))


def block_hashes(worker: int, tokens: list[int], blocks: int) -> list[int]:
    """Engine hashes of a prompt's first blocks, as different on each worker as unseeded engines make them."""
    draw = 0x9E3779B97F4A7C15 * (worker + 1) & 0xFFFFFFFFFFFFFFFF
    hashes = []
    for start in range(0, blocks * BLOCK_SIZE, BLOCK_SIZE):
        draw = hash((draw, *tokens[start : start + BLOCK_SIZE])) & 0xFFFFFFFFFFFFFFFF
        hashes.append(draw)
    return hashes
