"""Lookups while events of 64 workers come in at 100,000 blocks a second, over real sockets, in one event loop.

`lookup_busy` is the median of a lookup of 2,048 blocks, its baseline the same without events. `lookup_busy_wait` is how
late such a request is served (median) because the loop does something else, `loop_stall` the longest time of that.
`ingest_sustained` is what was indexed a second, `ingest_sustained_cpu` the share of a core that all of it took.
"""

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.kv_index import known
from benchmarks.kv_workload import Workload
from benchmarks.report import report
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.knowledge import KvKnowledge
from epp.prompts.prompt import Prompt

WORKERS = 64
BLOCKS_PER_SECOND = 100_000
EVENT_BLOCKS = 32
"""A turn of 512 new tokens: what agents add to a conversation."""
SECONDS = 8.0
PAUSE_SECONDS = 0.004
_CONNECT_TRIES = 400


@dataclass(frozen=True, slots=True)
class Measured:
    """One phase; times in seconds."""

    lookups: list[float]
    waits: list[float]
    blocks: float
    """Indexed a second."""
    cpu: float
    """Share of a core."""


def main(_rows: Sequence[str]) -> None:
    with publishers() as (process, ports):
        asyncio.run(_measure(process, ports))


@contextlib.contextmanager
def publishers() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The process that publishes, and its ports."""
    command = [sys.executable, "-m", "benchmarks.kv_publishers", str(WORKERS), str(BLOCKS_PER_SECOND)]
    with subprocess.Popen(
        [*command, str(EVENT_BLOCKS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["ports"]
        process.communicate()


async def _measure(process: subprocess.Popen[str], ports: list[int]) -> None:
    workload = Workload(2048, WORKERS)
    tokens = workload.tokens()
    pool = Pool()
    knowledge = KvKnowledge(pool=pool, index=known(workload, tokens))
    prompts = [np.array(prompt, dtype=np.uint32) for prompt in tokens]
    await knowledge.start()
    pool.replace(
        Endpoint(name=f"w{i}", address="127.0.0.1", port=1 + i, events_port=port) for i, port in enumerate(ports)
    )
    for _ in range(_CONNECT_TRIES):
        if all(rank.connected for rank in knowledge.status().ranks):
            break
        await asyncio.sleep(0.05)
    idle = await _phase(knowledge, prompts)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    await asyncio.sleep(1.0)
    busy = await _phase(knowledge, prompts)
    lost = sum(rank.lost for rank in knowledge.status().ranks)
    await knowledge.stop()
    assert not lost, f"{lost} batches lost"
    report("ingest_sustained", busy.blocks, "blocks/s")
    report("ingest_sustained_cpu", busy.cpu, "cores", idle.cpu)
    report("lookup_busy", statistics.median(busy.lookups) * 1e6, "us", statistics.median(idle.lookups) * 1e6)
    report("lookup_busy_wait", statistics.median(busy.waits) * 1e3, "ms", statistics.median(idle.waits) * 1e3)
    report("loop_stall", max(busy.waits) * 1e3, "ms", max(idle.waits) * 1e3)


async def _phase(knowledge: KvKnowledge, prompts: list[np.ndarray]) -> Measured:
    lookups, waits = [], []
    begin, cpu, blocks = time.perf_counter(), time.process_time(), _stored(knowledge)
    while (now := time.perf_counter()) < begin + SECONDS:
        await asyncio.sleep(PAUSE_SECONDS)
        start = time.perf_counter()
        knowledge.match(Prompt(tokens=prompts[len(lookups) % len(prompts)]))
        lookups.append(time.perf_counter() - start)
        waits.append(start - now - PAUSE_SECONDS)
    seconds = time.perf_counter() - begin
    return Measured(
        lookups,
        waits,
        (_stored(knowledge) - blocks) / seconds,
        (time.process_time() - cpu) / seconds,
    )


def _stored(knowledge: KvKnowledge) -> int:
    return sum(rank.stored for rank in knowledge.status().ranks)


if __name__ == "__main__":
    main(sys.argv[1:])
