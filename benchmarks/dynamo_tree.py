"""The baseline of lookups: Dynamo's radix tree through its Python binding, in a process and environment of its own.

Reads `blocks workers` as arguments, builds the tree, then answers each line on stdin, a number of lookups, with the
mean CPU microseconds of one: token list in, matched blocks for each worker out.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dynamo._core import RadixTree, compute_block_hash_for_seq  # type: ignore[import-not-found]

from benchmarks.kv_workload import BLOCK_SIZE, Workload, block_hashes

_EVENT = 64


def build(workload: Workload, prompts: list[list[int]]) -> RadixTree:
    """A tree that knows all holdings."""
    tree = RadixTree()
    local = [compute_block_hash_for_seq(tokens, BLOCK_SIZE) for tokens in prompts]
    for holding in workload.holdings():
        hashes = block_hashes(0, prompts[holding.prompt], holding.blocks)
        for first in range(0, holding.blocks, _EVENT):
            blocks = [
                {"block_hash": hashes[i], "tokens_hash": local[holding.prompt][i]}
                for i in range(first, min(first + _EVENT, holding.blocks))
            ]
            stored = {"parent_hash": hashes[first - 1] if first else None, "blocks": blocks}
            event = {"event_id": first, "dp_rank": 0, "data": {"stored": stored}}
            tree.apply_event(holding.worker, json.dumps(event).encode())
    return tree


def main() -> None:
    workload = Workload(int(sys.argv[1]), int(sys.argv[2]))
    prompts = workload.tokens()
    tree = build(workload, prompts)
    print(json.dumps(sorted(_lookup(tree, prompts[0]).values())), flush=True)
    for line in sys.stdin:
        rounds = int(line)
        start = time.process_time()
        for i in range(rounds):
            _lookup(tree, prompts[i % len(prompts)])
        print((time.process_time() - start) / rounds * 1e6, flush=True)


def _lookup(tree: RadixTree, tokens: list[int]) -> dict[object, int]:
    scores: dict[object, int] = tree.find_matches(compute_block_hash_for_seq(tokens, BLOCK_SIZE)).scores
    return scores


if __name__ == "__main__":
    main()
