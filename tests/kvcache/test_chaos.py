"""Faults at random on real sockets; when they end, what is known is exactly what the engines hold."""

import asyncio
import random
import time

import numpy as np

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.events import Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.kvcache.stream import StreamOptions
from epp.prompts.prompt import Prompt
from tests.kvcache.publisher import CLEARED, Publisher, batch, removed, stored

BLOCK = 4
PROMPTS = [[random.Random(i // 2).randrange(1000) for _ in range(16)] + list(range(i, i + 24)) for i in range(8)]
LARGEST = 30


class ChaoticEngine:
    """A block cache with copies, and a publisher that misbehaves as asked."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.publisher = Publisher()
        self.life = 0
        self.copies: dict[int, int] = {}

    def names(self, prompt: list[int]) -> list[int]:
        blocks = range(BLOCK, len(prompt) + 1, BLOCK)
        return [hash((self.life, *prompt[:end])) & (2**64 - 1) for end in blocks]

    def work(self, *, faults: bool) -> None:
        """One engine step with its batch; with `faults`, the batch may come to harm."""
        payload = batch(*self._change())
        lose = faults and self.draw.random() < 0.15
        self.publisher.publish(payload, lose=lose)
        if faults and self.draw.random() < 0.1:
            self.publisher.send_raw([b"", (self.publisher.sequence - 1).to_bytes(8, "big"), payload])
        if faults and self.draw.random() < 0.05:
            self.publisher.send_raw(
                [self.draw.randbytes(self.draw.randrange(30)) for _ in range(self.draw.randrange(1, 5))]
            )

    def restart(self) -> None:
        ports = self.publisher.port, self.publisher.replay_port
        self.publisher.close()
        self.life += 1
        self.copies.clear()
        self.publisher = Publisher(ports=ports)

    def _change(self) -> list[object]:
        prompt = self.draw.choice(PROMPTS)
        names = self.names(prompt)
        if self.draw.random() < 0.02:
            self.copies.clear()
            return [CLEARED]
        held = next((i for i, name in enumerate(names) if name not in self.copies), len(names))
        end = self.draw.randrange(held, len(names) + 1)
        if end == held == len(names):
            held -= 1  # the last block of a wholly cached prompt is computed again
        events: list[object] = []
        while len(self.copies) + end - held > LARGEST:
            events.append(removed([self._evict()]))
            if held and names[held - 1] not in self.copies:
                return events
        for name in names[held:end]:
            self.copies[name] = self.copies.get(name, 0) + 1
        if end > held:
            parent = names[held - 1] if held else None
            events.append(stored(names[held:end], prompt[held * BLOCK : end * BLOCK], parent=parent))
        return events

    def _evict(self) -> int:
        """The end of some chain, as engines evict."""
        held = list(self.copies)
        chains = [[name for name in self.names(prompt) if name in self.copies] for prompt in PROMPTS]
        leaves = [name for name in held if not any(name in chain[:-1] for chain in chains)]
        name = self.draw.choice(leaves)
        self.copies[name] -= 1
        if not self.copies[name]:
            del self.copies[name]
        return name


async def test_after_the_faults_the_index_is_what_the_engines_hold():
    draw = random.Random(7)
    engines = [ChaoticEngine(draw) for _ in range(3)]
    pool = Pool()
    index = RunIndex(PrefixKeys())
    knowledge = KvKnowledge(pool=pool, index=index, options=StreamOptions(replay_idle_seconds=0.2, mend_seconds=1.0))
    await knowledge.start()
    try:
        pool.replace(
            Endpoint(
                name=f"w{i}",
                address="127.0.0.1",
                port=8000 + i,
                events_port=engine.publisher.port,
                replay_port=engine.publisher.replay_port,
            )
            for i, engine in enumerate(engines)
        )
        end = time.monotonic() + 4
        while time.monotonic() < end:
            engine = draw.choice(engines)
            if draw.random() < 0.01:
                engine.restart()
            engine.publisher.answer = draw.random() < 0.9
            engine.publisher.end_marker = draw.random() < 0.8
            for _ in range(draw.randrange(8)):
                engine.work(faults=True)
            index.match(Prompt(tokens=np.array(draw.choice(PROMPTS), dtype=np.uint32)))
            await asyncio.sleep(0.002)
        for engine in engines:
            engine.publisher.answer = engine.publisher.end_marker = True
        await _settle(engines, index, knowledge)
        assert all(rank.faults == 0 for rank in knowledge.status().ranks)
    finally:
        await knowledge.stop()
        for engine in engines:
            engine.publisher.close()


async def _settle(engines: list[ChaoticEngine], index: RunIndex, knowledge: KvKnowledge) -> None:
    """Quiet work goes on, without faults, until everything is known."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        for engine in engines:
            engine.work(faults=False)
        await asyncio.sleep(0.3)
        if all(_known(index, i + 1) == engine.copies for i, engine in enumerate(engines)):
            return
    raise AssertionError(f"never equal: {knowledge.status()}")


def _known(index: RunIndex, rank: int) -> dict[int, int]:
    layer = index._ranks[rank].layers.get(Tier.GPU)
    return {name: 1 + layer.copies.get(name, 0) for name in layer.places} if layer else {}
