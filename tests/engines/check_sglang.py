"""Our index against SGLang's real radix cache: `python -m tests.engines.check_sglang ROOT SEED REQUESTS`."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt
from tests.engines.check_vllm import copies, follow, logging_off, until_equal
from tests.engines.sglang_engine import SglangEngine
from tests.waiting import free_ports


class Workload:
    """Requests that share beginnings, in namespaces, and resets of the whole cache."""

    def __init__(self, engine: SglangEngine, seed: int) -> None:
        self._engine = engine
        self._draw = random.Random(seed)
        self._trunks = [[self._draw.randrange(9999) for _ in range(64)] for _ in range(5)]
        self._live: list[Any] = []
        self.admitted = 0
        self.hits = 0
        self.resets = 0

    def step(self, index: RunIndex | None = None) -> None:
        """One operation; an admission compares what `index` predicts with what the engine reports."""
        draw = self._draw
        if len(self._live) > 5 or (self._live and draw.random() < 0.4):
            self._engine.finish(self._live.pop(draw.randrange(len(self._live))))
        tokens = draw.choice(self._trunks)[: draw.randrange(2, 65)]
        tokens += [draw.randrange(9999) for _ in range(draw.choice((0, 30)))]
        lora = "sql" if draw.random() < 0.2 else None
        salt = draw.choice((None, None, "s"))
        prompt = Prompt(tokens=np.array(tokens, dtype=np.uint32), namespace=namespace(lora or "", salt or ""))
        predicted = int(index.match(prompt).cached_tokens[0]) if index else None
        result = self._engine.admit(tokens, lora=lora, salt=salt)
        if result is not None:
            handle, cached = result
            assert predicted in (None, cached), f"predicted {predicted}, reported {cached}"
            self._live.append(handle)
            self.admitted += 1
            self.hits += cached
        if draw.random() < 0.004:
            while self._live:
                self._engine.finish(self._live.pop())
            self._engine.reset()
            self.resets += 1


def check_steps(root: Path, seed: int, requests: int) -> dict[str, int]:
    """Compare after every step and for every request."""
    engine = SglangEngine(root, slots=900, page=random.Random(seed).choice((4, 8)))
    index = RunIndex(PrefixKeys())
    rank = Rank(index, 0)
    load = Workload(engine, seed)
    _feed(rank, engine)
    while load.admitted < requests:
        load.step(index)
        _feed(rank, engine)
        assert copies(index, 1) == engine.truth()
    assert not rank.counts.skipped, rank.counts.skipped
    return {"requests": load.admitted, "cached_tokens": load.hits, "resets": load.resets}


async def check_wire(root: Path, seed: int, requests: int) -> dict[str, int]:
    """The same over the engine's own sockets: live, joined late by replay, and after a restart."""
    ports = free_ports(2)
    pool = Pool()
    early, late = (follow(pool) for _ in range(2))
    await early.start()
    pool.replace([Endpoint(name="w", address="127.0.0.1", port=1, events_port=ports[0], replay_port=ports[1])])
    for life in range(2):
        engine = await _started(root, (ports[0], ports[1]))
        load = Workload(engine, seed + life)
        while load.admitted < requests:
            load.step()
            engine.step()
            await asyncio.sleep(0)
        await until_equal(early, engine)
        if not life:
            await late.start()
        await until_equal(late, engine)
        engine.close()
    restarts = [knowledge.status().ranks[0].restarts for knowledge in (early, late)]
    await early.stop()
    await late.stop()
    assert min(restarts) >= 1
    return {"restarts": min(restarts)}


async def _started(root: Path, ports: tuple[int, int]) -> SglangEngine:
    """An engine on these ports, which the one before may take a moment to leave."""
    for _ in range(100):
        try:
            return SglangEngine(root, slots=900, page=8, ports=ports)
        except zmq.ZMQError:
            await asyncio.sleep(0.1)
    raise AssertionError(f"ports {ports} stay taken")


def main(root: Path, seed: int, requests: int) -> None:
    """Both checks."""
    logging_off()
    result = check_steps(root, seed, requests)
    result |= asyncio.run(check_wire(root, seed, requests))
    print(json.dumps(result))


def _feed(rank: Rank, engine: SglangEngine) -> None:
    batch = engine.step()
    for _ in rank.feed(batch) if batch else ():
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
