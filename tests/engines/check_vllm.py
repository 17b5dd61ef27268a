"""Our index against vLLM's real cache: `python -m tests.engines.check_vllm ROOT SEED REQUESTS [namespaces]`.

A process of its own for each version. Exits 0 and prints what was compared when everything was equal.
"""

import asyncio
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.events import Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.kvcache.stream import StreamOptions
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt
from tests.engines import modules
from tests.engines.vllm_engine import VllmEngine
from tests.waiting import free_ports


class Workload:
    """Random life of an engine: admissions, decoding, ends, preemption, resumption, resets."""

    def __init__(self, engine: VllmEngine, draw: random.Random, *, namespaces: bool) -> None:
        self.engine = engine
        self.draw = draw
        self.namespaces = namespaces
        size = engine.block_size
        self.trunks = [[draw.randrange(50_000) for _ in range(size * n)] for n in (2, 3, 4, 6, 8, 8)]
        self.live: list[Any] = []
        self.admitted = 0
        self.resets = 0

    def step(self, predicted: Callable[[Prompt], int] | None) -> None:
        """One operation; an admission compares `predicted` with what the engine reports."""
        kind = self.draw.random()
        if kind < 0.45 and len(self.live) < 8:
            self._admit(predicted)
        elif kind < 0.65 and self.live:
            self.engine.decode(self.draw.choice(self.live), self.draw.randrange(1, 2 * self.engine.block_size))
        elif kind < 0.92 and self.live:
            self.engine.finish(self.live.pop(self.draw.randrange(len(self.live))))
        elif kind < 0.96 and self.live:
            self.engine.preempt(self.draw.choice(self.live))
        elif kind < 0.995:
            waiting = [request for request in self.live if request.request_id not in self.engine.running]
            if waiting:
                self.engine.schedule(self.draw.choice(waiting))
        else:
            self.engine.reset()
            self.resets += 1

    def _admit(self, predicted: Callable[[Prompt], int] | None) -> None:
        draw, size = self.draw, self.engine.block_size
        tokens = list(draw.choice(self.trunks))
        if draw.random() < 0.7:
            tokens = tokens[: size * draw.randrange(1, 1 + len(tokens) // size)]
        tokens += [draw.randrange(50_000) for _ in range(draw.choice((0, 0, 1, draw.randrange(3 * size))))]
        salt = draw.choice("xy") if self.namespaces and draw.random() < 0.2 else None
        lora = draw.choice(("sql", "law")) if self.namespaces and draw.random() < 0.2 else None
        prompt = Prompt(tokens=np.array(tokens, dtype=np.uint32), namespace=namespace(lora or "", salt or ""))
        expected = predicted(prompt) if predicted else None
        admitted = self.engine.admit(tokens, salt=salt, lora=lora)
        if admitted is not None:
            request, cached = admitted
            assert expected in (None, cached), f"predicted {expected}, reported {cached}"
            self.live.append(request)
            self.admitted += 1


def copies(index: RunIndex, rank: int) -> dict[int, int]:
    """What the index believes, in the form of `VllmEngine.truth`."""
    layer = index._ranks[rank].layers.get(Tier.GPU)
    return {name: 1 + layer.copies.get(name, 0) for name in layer.places} if layer else {}


def check_steps(root: Path, seed: int, requests: int, *, namespaces: bool) -> dict[str, int]:
    """Compare after every step and for every request."""
    draw = random.Random(seed)
    engine = VllmEngine(root, blocks=draw.choice((41, 65, 161)), block_size=draw.choice((4, 8, 16)), seed=seed)
    index = RunIndex(PrefixKeys())
    rank = Rank(index, 0)
    load = Workload(engine, draw, namespaces=namespaces)
    steps = most_copies = 0
    while load.admitted < requests:
        load.step(lambda prompt: int(index.match(prompt).cached_tokens[0]))
        batch = engine.step()
        for _ in rank.feed(batch) if batch else ():
            pass
        truth = engine.truth()
        assert copies(index, 1) == truth, f"after {steps} steps"
        most_copies = max(most_copies, *truth.values(), 0) if truth else most_copies
        steps += 1
        index.sweep(1000)
    assert not rank.counts.skipped, rank.counts.skipped
    assert not rank.parked
    assert not modules.touched, modules.touched
    return {"steps": steps, "requests": load.admitted, "resets": load.resets, "most_copies": most_copies}


async def check_wire(root: Path, seed: int, requests: int, *, namespaces: bool) -> dict[str, int]:
    """The same over the engine's own sockets: live, joined late by replay, and after a restart."""
    ports = free_ports(2)
    pool = Pool()
    early, late = (follow(pool) for _ in range(2))
    await early.start()
    endpoint = Endpoint(name="w", address="127.0.0.1", port=1, events_port=ports[0], replay_port=ports[1])
    pool.replace([endpoint])
    batches = 0
    for life in range(2):
        draw = random.Random(seed + life)
        engine = await _started(root, (ports[0], ports[1]), seed + life)
        load = Workload(engine, draw, namespaces=namespaces)
        while load.admitted < requests:
            load.step(None)
            batches += engine.step() is not None
            if draw.random() < 0.1:
                await asyncio.sleep(0)
        await until_equal(early, engine)
        if not life:
            await late.start()
        await until_equal(late, engine)
        engine.close()
    restarts = [knowledge.status().ranks[0].restarts for knowledge in (early, late)]
    lost = [knowledge.status().ranks[0].lost for knowledge in (early, late)]
    await early.stop()
    await late.stop()
    assert min(restarts) >= 1
    assert lost == [0, 0]
    return {"batches": batches, "restarts": min(restarts)}


async def _started(root: Path, ports: tuple[int, int], seed: int) -> VllmEngine:
    """An engine on these ports, which the one before may take a moment to leave."""
    for _ in range(100):
        try:
            return VllmEngine(root, blocks=161, block_size=8, ports=ports, seed=seed)
        except zmq.ZMQError:
            await asyncio.sleep(0.1)
    raise AssertionError(f"ports {ports} stay taken")


def follow(pool: Pool) -> KvKnowledge:
    return KvKnowledge(pool=pool, index=RunIndex(PrefixKeys()), options=StreamOptions(replay_idle_seconds=1.0))


async def until_equal(knowledge: KvKnowledge, engine: Any) -> None:
    """Wait until the first rank holds what `engine.truth` says."""
    index = knowledge.index
    assert isinstance(index, RunIndex)
    for _ in range(600):
        if copies(index, 1) == engine.truth():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not equal: {knowledge.status()}")


def main(root: Path, seed: int, requests: int, *, namespaces: bool) -> None:
    logging_off()
    result = check_steps(root, seed, requests, namespaces=namespaces)
    result |= asyncio.run(check_wire(root, seed, requests, namespaces=namespaces))
    print(json.dumps(result))


def logging_off() -> None:
    import logging

    logging.disable(logging.WARNING)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), namespaces="namespaces" in sys.argv[4:])
