"""The index of cached blocks: lookups against Dynamo's radix tree, ingestion and memory against the naive index.

Rows are measured in alternating rounds. The radix tree runs in a process with an environment of its own, through its
Python binding; both sides start from the same token ids and end with the matched length for each worker.
"""

import os
import random
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.kv_workload import BLOCK_SIZE, Workload, block_hashes
from benchmarks.report import report
from epp.kvcache.events import Stored
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.naive_index import NaiveIndex
from epp.kvcache.prefix_index import BlockIndex
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.prompts.prompt import Prompt

DYNAMO = "ai-dynamo-runtime==1.6.1"
ROUNDS = 9
CHAIN = 64
"""Blocks of one conversation in the ingestion and memory rows."""

LOOKUPS = {
    f"lookup_{blocks}x{workers}": (blocks, workers)
    for blocks, workers in ((128, 64), (2048, 64), (8192, 64), (2048, 512))
}
AMONG = "lookup_2048x64_among_1m"
"""The same lookup among a million other blocks; its baseline is without them."""
INGESTS = {"ingest_1": 1, "ingest_8": 8, "ingest_64": 64}
STEPS = ("ingest_step_store", "ingest_step_removals")
"""The longest time without a pause, for a prompt of 131,072 tokens in one event and for 8,192 removals in one batch."""
MEMORIES = {
    f"memory_entry{suffix}_{workers}w": (entries, workers)
    for suffix, entries in (("_1k", 1_000), ("_100k", 100_000), ("_1m", 1_000_000), ("_4m", 4_000_000))
    for workers in (8, 64)
}


def main(rows: Sequence[str]) -> None:
    for name, (blocks, workers) in LOOKUPS.items():
        if not rows or any(row.startswith(name) for row in rows):
            lookup(name, Workload(blocks, workers))
    if not rows or AMONG in rows:
        lookup_among(AMONG, Workload(2048, 64), 1_000_000)
    for name, blocks in INGESTS.items():
        if not rows or name in rows:
            ingest(name, blocks)
    for name in STEPS:
        if not rows or name in rows:
            ingest_step(name, one_store(8192) if name == STEPS[0] else removals(8192))
    if not rows or "memory_entry" in rows:
        report("memory_entry", memory(RunIndex, 1_000_000, 64), "B", memory(NaiveIndex, 1_000_000, 64))
    for name, (entries, workers) in MEMORIES.items():
        if not rows or name in rows:
            report(name, memory(RunIndex, entries, workers), "B")


# Lookups.


def lookup(name: str, workload: Workload) -> None:
    """Token ids in, matched tokens for each worker out; from a list and from a buffer."""
    prompts = workload.tokens()
    index = known(workload, prompts)
    buffers = [np.array(tokens, dtype=np.uint32) for tokens in prompts]

    def from_list(i: int) -> None:
        index.match(Prompt(tokens=np.frombuffer(array("I", prompts[i]), dtype=np.uint32)))

    def from_buffer(i: int) -> None:
        index.match(Prompt(tokens=buffers[i]))

    lookups = max(8, 200_000 // workload.blocks // 4)
    with Dynamo(workload) as dynamo:
        expected = sorted(index.match(Prompt(tokens=buffers[0])).cached_tokens.tolist())
        assert expected == [blocks * BLOCK_SIZE for blocks in dynamo.matched]
        rounds = [
            (dynamo.microseconds(lookups), timed(from_list, lookups), timed(from_buffer, lookups))
            for _ in range(ROUNDS)
        ]
    baseline = statistics.median(row[0] for row in rounds)
    for form, column in (("list", 1), ("buffer", 2)):
        ratio = statistics.median(row[column] / row[0] for row in rounds)
        report(f"{name}_{form}", baseline * ratio, "us", baseline)


def lookup_among(name: str, workload: Workload, others: int) -> None:
    """From a buffer, in an index that holds `others` more entries of as many workers, against one that does not."""
    prompts = workload.tokens()
    buffers = [np.array(tokens, dtype=np.uint32) for tokens in prompts]
    alone, among = known(workload, prompts), known(workload, prompts)
    ranks = [Rank(among, worker) for worker in range(workload.workers)]
    for chain in range(others // CHAIN):
        feed(ranks[chain % workload.workers], batches(1, CHAIN, chain))
    lookups = 200

    def microseconds(index: RunIndex) -> float:
        return timed(lambda i: index.match(Prompt(tokens=buffers[i])), lookups)

    rounds = [(microseconds(alone), microseconds(among)) for _ in range(ROUNDS)]
    baseline = statistics.median(row[0] for row in rounds)
    report(name, baseline * statistics.median(row[1] / row[0] for row in rounds), "us", baseline)


def known(workload: Workload, prompts: list[list[int]]) -> RunIndex:
    """An index that knows all holdings."""
    index = RunIndex(PrefixKeys())
    ranks = [index.open(worker) for worker in range(workload.workers)]
    for holding in workload.holdings():
        tokens = prompts[holding.prompt]
        hashes = block_hashes(0, tokens, holding.blocks)
        for first in range(0, holding.blocks, CHAIN):
            behind = min(first + CHAIN, holding.blocks)
            part = array("I", tokens[first * BLOCK_SIZE : behind * BLOCK_SIZE])
            parent = hashes[first - 1] if first else None
            index.store(ranks[holding.worker], Stored(hashes[first:behind], parent, part, BLOCK_SIZE))
    return index


def timed(lookup_once: Callable[[int], None], lookups: int) -> float:
    """Mean CPU microseconds of one lookup."""
    start = time.process_time()
    for i in range(lookups):
        lookup_once(i % 4)
    return (time.process_time() - start) / lookups * 1e6


class Dynamo:
    """The radix tree in its own process."""

    def __init__(self, workload: Workload) -> None:
        script = Path(__file__).with_name("dynamo_tree.py")
        command = [sys._base_executable, str(script), str(workload.blocks), str(workload.workers)]  # type: ignore[attr-defined]
        environment = os.environ | {"PYTHONPATH": str(_installed(DYNAMO))}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.matched: list[int] = msgspec.json.decode(self._answer())

    def __enter__(self) -> "Dynamo":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def microseconds(self, lookups: int) -> float:
        """Mean of so many lookups."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{lookups}\n")
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _installed(requirement: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epp"
    folder = cache / requirement.replace("==", "-")
    if not folder.exists():
        scratch = folder.with_suffix(".part")
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(scratch), requirement]
        subprocess.run([sys._base_executable, *pip], check=True)  # type: ignore[attr-defined]
        scratch.rename(folder)
    return folder


# Ingestion and memory.


def batches(chains: int, event_blocks: int, seed: int) -> list[bytes]:
    """vLLM's batches, one event each, of `chains` new conversations."""
    draw = random.Random(seed)
    payloads = []
    for _ in range(chains):
        parent = None
        for _ in range(0, CHAIN, event_blocks):
            hashes = [draw.getrandbits(64) for _ in range(event_blocks)]
            tokens = [draw.randrange(129_000) for _ in range(event_blocks * BLOCK_SIZE)]
            event = {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": parent,
                "token_ids": tokens,
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * event_blocks,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
            payloads.append(msgspec.msgpack.encode([0.5, [event], 0]))
            parent = hashes[-1]
    return payloads


def feed(rank: Rank, payloads: Sequence[bytes]) -> None:
    for payload in payloads:
        for _ in rank.feed(payload):
            pass


def ingest(name: str, event_blocks: int) -> None:
    """CPU from the bytes of a batch to the index, for each block."""
    rounds = []
    for seed in range(ROUNDS):
        payloads = batches(60, event_blocks, seed)
        costs = []
        for kind in (RunIndex, NaiveIndex):
            rank = Rank(kind(PrefixKeys()), 0)
            start = time.process_time()
            feed(rank, payloads)
            costs.append((time.process_time() - start) / (60 * CHAIN) * 1e6)
        rounds.append(costs)
    baseline = statistics.median(row[1] for row in rounds)
    report(name, baseline * statistics.median(ours / naive for ours, naive in rounds), "us", baseline)


def one_store(blocks: int) -> bytes:
    """A batch with one event of so many blocks."""
    draw = random.Random(1)
    event = {
        "type": "BlockStored",
        "block_hashes": [draw.getrandbits(64) for _ in range(blocks)],
        "parent_block_hash": None,
        "token_ids": [draw.randrange(129_000) for _ in range(blocks * BLOCK_SIZE)],
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * blocks,
    }
    return msgspec.msgpack.encode([0.5, [event], 0])


def removals(blocks: int) -> bytes:
    """A batch of so many events, as vLLM sends them when a long prompt takes the blocks of others."""
    draw = random.Random(2)
    events = [
        {"type": "BlockRemoved", "block_hashes": [draw.getrandbits(64)], "medium": "GPU", "group_idx": 0}
        for _ in range(blocks)
    ]
    return msgspec.msgpack.encode([0.5, events, 0])


def ingest_step(name: str, payload: bytes) -> None:
    """The longest step's CPU, the least of all rounds; the baseline is that of all steps together."""
    longest, whole = [], []
    for _ in range(ROUNDS):
        times = [time.thread_time()]
        times.extend(time.thread_time() for _ in Rank(RunIndex(PrefixKeys()), 0).feed(payload))
        longest.append(max(after - before for before, after in pairwise(times)))
        whole.append(times[-1] - times[0])
    report(name, min(longest) * 1e3, "ms", min(whole) * 1e3)


def memory(kind: Callable[[PrefixKeys], BlockIndex], entries: int, workers: int) -> float:
    """Bytes for each (worker, block) entry, in a fresh process."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (kind, entries, workers))


def _grown(kind: Callable[[PrefixKeys], BlockIndex], entries: int, workers: int) -> float:
    """Conversations of 64 blocks in events of 8, each held by two workers."""
    index = kind(PrefixKeys())
    ranks = [Rank(index, worker) for worker in range(workers)]
    traced = entries < 10_000
    feed(ranks[0], batches(1, 8, 1))
    if traced:
        tracemalloc.start()
    before = _bytes(traced)
    for chain in range(entries // CHAIN // 2):
        payloads = batches(1, 8, chain + 2)
        for copy in range(2):
            feed(ranks[(chain + copy * workers // 2) % workers], payloads)
    return (_bytes(traced) - before) / (entries // CHAIN // 2 * CHAIN * 2)


def _bytes(traced: bool) -> int:
    if traced:
        return tracemalloc.get_traced_memory()[0]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv[1:])
