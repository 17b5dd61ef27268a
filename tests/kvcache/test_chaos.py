"""Simulated engines under load whose publishers misbehave at random: no pick fails, and what is known when the faults
end is exactly what the engines hold.
"""

import asyncio
import random
import time

import numpy as np

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.assumed import AssumedLimits
from epp.kvcache.events import Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.kvcache.stream import StreamOptions
from epp.prompts.prompt import Prompt, Request
from epp.scheduling.predicted_ttft import PredictedTtft
from epp.scheduling.scheduler import Scheduler
from epp.simulate.engine.cache import BlockCache, CacheEvent, Sequence
from epp.simulate.engine.engine import Engine, EngineConfig
from epp.simulate.engine.events import EventEncoder, EventsForm
from tests.kvcache.publisher import Publisher
from tests.waiting import until

BLOCK = 4
ENGINES = 3
FAULTY_SECONDS = 5.0
CONFIG = EngineConfig(
    blocks=96, block_size=BLOCK, prefill_tokens_per_second=40_000, step_tokens=64, inter_token_seconds=0.001
)
SHARED = [[random.Random(i).randrange(1000) for _ in range(40)] for i in range(3)]


class Faulty:
    """The publisher of one engine; with `faults` its batches come to harm on their way."""

    def __init__(self, draw: random.Random, ports: tuple[int, int] | None = None) -> None:
        self.wire = Publisher(ports=ports)
        self.faults = True
        self._draw = draw
        self._encoder = EventEncoder(draw.choice(list(EventsForm)), BLOCK, 0)
        self._late: bytes | None = None
        self._closed = False

    def publish(self, events: list[CacheEvent]) -> None:
        """As the engine's own publisher does."""
        if events and not self._closed:
            self._send(self._encoder.batch(events, time.time()))
        events.clear()

    def close(self) -> None:
        self._closed = True
        self.wire.close()

    def _send(self, payload: bytes) -> None:
        fate = self._draw.random() if self.faults else 1.0
        late, self._late = self._late, None
        number = self.wire.sequence.to_bytes(8, "big")
        if fate < 0.05:
            self._late = payload
            self._late_number = number
        self.wire.publish(payload, lose=fate < 0.15)
        if late is not None:
            self.wire.send_raw([b"", self._late_number, late])
        if 0.15 < fate < 0.25:
            self.wire.send_raw([b"", number, payload])
        if 0.25 < fate < 0.3:
            garbage = [self._draw.randbytes(self._draw.randrange(30)) for _ in range(self._draw.randrange(1, 5))]
            self.wire.send_raw(garbage)


class Worker:
    """An engine that can be restarted at its address."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.publisher = Faulty(draw)
        self.engine = self._new_engine()

    def restart(self) -> None:
        ports = self.publisher.wire.port, self.publisher.wire.replay_port
        self.publisher.close()
        self.publisher = Faulty(self._draw, ports)
        self.engine = self._new_engine()

    def _new_engine(self) -> Engine:
        return Engine(CONFIG, BlockCache(CONFIG.blocks, BLOCK), self.publisher)  # type: ignore[arg-type]


class World:
    """Clients, a picker and its workers in one process; only events go over sockets."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.workers = [Worker(self.draw) for _ in range(ENGINES)]
        self.pool = Pool()
        self.index = RunIndex(PrefixKeys())
        self.knowledge = KvKnowledge(
            pool=self.pool,
            index=self.index,
            block_size=BLOCK,
            options=StreamOptions(replay_idle_seconds=0.2, mend_seconds=1.0),
            limits=AssumedLimits(overlay_seconds=1.0),
        )
        self.scheduler = Scheduler(
            pool=self.pool,
            index=self.knowledge,
            policy=PredictedTtft(self.draw),
            picked=self.knowledge.picked,
        )
        self.requests = 0

    async def start(self) -> None:
        await self.knowledge.start()
        self.pool.replace(
            Endpoint(
                name=f"w{i}",
                address="127.0.0.1",
                port=8000 + i,
                events_port=worker.publisher.wire.port,
                replay_port=worker.publisher.wire.replay_port,
            )
            for i, worker in enumerate(self.workers)
        )

    async def client(self) -> None:
        """One conversation after another, each turn a pick and a run on the engine that was picked."""
        while True:
            tokens = list(self.draw.choice(SHARED)[: self.draw.randrange(8, 41)])
            for _ in range(self.draw.randrange(1, 4)):
                tokens += [self.draw.randrange(1000) for _ in range(self.draw.randrange(1, 30))]
                answer = [self.draw.randrange(1000) for _ in range(self.draw.randrange(1, 12))]
                await self.request(tokens, answer)
                tokens += answer
                await asyncio.sleep(self.draw.random() * 0.01)

    async def request(self, tokens: list[int], answer: list[int]) -> None:
        prompt = Prompt(tokens=np.array(tokens, dtype=np.uint32))
        pick = self.scheduler.pick(Request(prompt=prompt))
        column, endpoint = pick.reservation.column, pick.decision.endpoint
        engine = self.workers[endpoint.port - 8000].engine
        try:
            async with engine.run(Sequence(list(tokens), BLOCK), answer) as run:
                async for _ in run.tokens():
                    pass
        finally:
            pick.reservation.release()
        self.requests += 1
        if engine is self.workers[endpoint.port - 8000].engine:
            self.knowledge.reported(column, endpoint, prompt, run.cached_tokens)

    async def trouble(self) -> None:
        """Restarts, resets, and replays that stay unanswered or are cut."""
        while True:
            worker = self.draw.choice(self.workers)
            if self.draw.random() < 0.03:
                worker.restart()
            if self.draw.random() < 0.05:
                worker.engine.reset()
            wire = worker.publisher.wire
            wire.answer = self.draw.random() < 0.8
            wire.end_marker = self.draw.random() < 0.8
            wire.replay_room = 40 if self.draw.random() < 0.3 else None
            await asyncio.sleep(0.02)

    def missing_faults(self) -> list[str]:
        """Kinds of faults that have not happened yet: they come by chance."""
        ranks = self.knowledge.status().ranks
        wanted = ("restarts", "replays_failed", "repeated", "bad_frames", "replayed")
        return [fault for fault in wanted if not sum(getattr(rank, fault) for rank in ranks)]

    def calm(self) -> None:
        for worker in self.workers:
            wire = worker.publisher.wire
            worker.publisher.faults = False
            wire.answer = wire.end_marker = True
            wire.replay_room = None

    def wrong(self) -> list[str]:
        """Workers of which something else is known than what they hold."""
        ranks = [self.knowledge._followed[column][0].rank.number for column in range(ENGINES)]
        return [
            f"w{i}"
            for i, (rank, worker) in enumerate(zip(ranks, self.workers, strict=True))
            if self._known(rank) != {each.hash: each.copies for each in worker.engine.cache.residents()}
        ]

    def _known(self, rank: int) -> dict[int, int]:
        layer = self.index._ranks[rank].layers.get(Tier.GPU)
        return {name: 1 + layer.copies.get(name, 0) for name in layer.places if name >= 0} if layer else {}

    async def close(self) -> None:
        await self.knowledge.stop()
        for worker in self.workers:
            worker.publisher.close()


async def test_no_pick_fails_and_after_the_faults_the_index_is_what_the_engines_hold():
    world = World(7)
    await world.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            at_work = [tasks.create_task(work) for work in (world.trouble(), *(world.client() for _ in range(6)))]
            await asyncio.sleep(FAULTY_SECONDS)
            await until(lambda: not world.missing_faults(), said=world.missing_faults)
            for task in at_work:
                task.cancel()
        assert world.requests > 50
        world.calm()
        await _settle(world)
        assert all(rank.faults == 0 for rank in world.knowledge.status().ranks)
    finally:
        await world.close()


async def _settle(world: World) -> None:
    """A little work goes on, without faults, until everything is known."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for worker in world.workers:
            tokens = [world.draw.randrange(1000) for _ in range(2 * BLOCK)]
            async with worker.engine.run(Sequence(tokens, BLOCK), [1]) as run:
                async for _ in run.tokens():
                    pass
        await asyncio.sleep(0.3)
        if not world.wrong():
            return
    raise AssertionError(f"never right: {world.wrong()} {world.knowledge.status()}")
