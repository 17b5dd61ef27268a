"""How soon a picker knows the caches again that comes new to busy engines, with no replay, no peer and no checkpoint.

The demo's load on the demo's engines, in virtual time and one process: real event batches, decoded and indexed as they
are when they come over a socket. The caches fill before the picker comes; then it follows events and learns from its
own picks and from the cached tokens that engines report. After `HEALED_AFTER` requests, `healing_known` is the share
of the tokens that engines find cached which it had foreseen at the pick, and `healing_false` the share of what it
promises, of whichever worker, that is not there. `healing_known_anywhere` asks the same as the first of all workers,
those too that requests did not go to: nothing can teach what is on a worker that gets none.
"""

import heapq
import random
import statistics
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.report import report
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.prompts.prompt import Prompt
from epp.simulate.demo.workload import Conversation, Shape, agents
from epp.simulate.engine.cache import BlockCache, Sequence
from epp.simulate.engine.events import EventEncoder, EventsForm

WORKERS = 4
BLOCK_SIZE = 16
HEALED_AFTER = 200
SPEED = 8000.0
TOKEN_SECONDS = 0.02
SHAPE = replace(Shape(), conversations_per_agent=7)
WARM = SHAPE.requests // 7 * 2
"""Requests before the picker comes: the load of one demo."""
_WORK_PRICE = 1.5
SEEDS = 4


@dataclass(slots=True)
class Tokens:
    """Tokens, summed over lookups."""

    known: int = 0
    """Both cached and promised."""
    cached: int = 0
    promised: int = 0

    def add(self, promised: int, cached: int) -> None:
        """One prompt on one worker."""
        self.known += min(promised, cached)
        self.cached += cached
        self.promised += promised

    @property
    def known_share(self) -> float:
        """Of the tokens that are cached."""
        return self.known / self.cached

    @property
    def false_share(self) -> float:
        """Of the tokens that are promised."""
        return 1 - self.known / self.promised


class Worker:
    """One engine, and what the picker knows of it once it has come."""

    def __init__(self, number: int, blocks: int) -> None:
        self.cache = BlockCache(blocks, BLOCK_SIZE)
        self.rank: Rank | None = None
        self.busy_until = 0.0
        self._encoder = EventEncoder(EventsForm.MAP, BLOCK_SIZE, number)

    def publish(self) -> None:
        """Bring what the cache did to whoever listens."""
        if self.rank is not None and self.cache.events:
            for _ in self.rank.feed(self._encoder.batch(self.cache.events, time.time())):
                pass
        self.cache.events.clear()

    def holds(self, tokens: list[int]) -> int:
        """Tokens of a prompt that need no computation now."""
        return len(self.cache.hits(Sequence(list(tokens), BLOCK_SIZE))) * BLOCK_SIZE


@dataclass(order=True, slots=True)
class _Step:
    """What happens next in one agent's life."""

    at: float
    agent: int
    next: Iterator[float] = field(compare=False)


class World:
    """The demo's agents and engines; `picker` comes when its time has come."""

    def __init__(self, seed: int) -> None:
        self._agents = agents(SHAPE, seed)
        blocks = SHAPE.working_set // 3 // BLOCK_SIZE
        self.workers = [Worker(i, blocks) for i in range(WORKERS)]
        self.index: RunIndex | None = None
        self.now = 0.0
        self.requests = 0
        self._tie = random.Random(seed)
        self.picked = Tokens()
        """On the workers that the prompts went to."""
        self.anywhere = Tokens()

    def run(self) -> None:
        """All conversations to their ends."""
        steps = [_Step(i / len(self._agents) * 2, i, self._live(talks)) for i, talks in enumerate(self._agents)]
        heapq.heapify(steps)
        while steps:
            step = heapq.heappop(steps)
            self.now = step.at
            pause = next(step.next, None)
            if pause is not None:
                heapq.heappush(steps, _Step(self.now + pause, step.agent, step.next))

    def _live(self, conversations: list[Conversation]) -> Iterator[float]:
        """One agent's requests, one after another; gives the seconds until it goes on."""
        for conversation in conversations:
            tokens = _tokens(conversation.system)
            for turn in conversation.turns:
                yield turn.pause_seconds
                tokens += _tokens(turn.text)
                answer = [self._tie.randrange(1000, 100_000) for _ in range(SHAPE.answer_tokens)]
                yield from self._request(list(tokens), answer)
                tokens += answer

    def _request(self, tokens: list[int], answer: list[int]) -> Iterator[float]:
        self.requests += 1
        if self.requests == WARM:
            self._picker_comes()
        prompt = Prompt(tokens=np.array(tokens, dtype=np.uint32))
        promised = self._promised(prompt)
        worker = self._pick(tokens, promised)
        if self.requests > WARM + HEALED_AFTER:
            for each, said in zip(self.workers, promised, strict=True):
                for sums in (self.anywhere, self.picked) if each is worker else (self.anywhere,):
                    sums.add(said, each.holds(tokens))
        if worker.rank is not None:
            worker.rank.assumed.expect(prompt, BLOCK_SIZE, self.now)
        yield max(0.0, worker.busy_until - self.now)
        sequence = Sequence(list(tokens), BLOCK_SIZE)
        while (cached := worker.cache.begin(sequence, len(answer))) is None:
            yield 0.05
        worker.publish()
        seconds = (len(tokens) - cached) / SPEED
        worker.busy_until = max(worker.busy_until, self.now) + seconds
        yield worker.busy_until - self.now
        worker.cache.store(sequence, len(tokens))
        worker.publish()
        for token in answer:
            yield TOKEN_SECONDS
            sequence.tokens.append(token)
            worker.cache.store(sequence, len(sequence.tokens) - 1)
            worker.publish()
        worker.cache.end(sequence)
        if worker.rank is not None:
            worker.rank.reported(prompt, cached, self.now)
            worker.rank.assumed.expire(self.now)

    def _picker_comes(self) -> None:
        self.index = RunIndex(PrefixKeys())
        for column, worker in enumerate(self.workers):
            worker.rank = Rank(self.index, column, block_size=BLOCK_SIZE)
            worker.rank.learn_shape(None, worker.cache.blocks)

    def _promised(self, prompt: Prompt) -> list[int]:
        return [0] * WORKERS if self.index is None else self.index.match(prompt).cached_tokens.tolist()

    def _pick(self, tokens: list[int], promised: list[int]) -> Worker:
        """Least wait and work, as the default policy does it; before the picker comes, by what is really cached."""
        hits = promised if self.index is not None else [worker.holds(tokens) for worker in self.workers]
        costs = [
            max(0.0, worker.busy_until - self.now) + _WORK_PRICE * (len(tokens) - hit) / SPEED
            for worker, hit in zip(self.workers, hits, strict=True)
        ]
        return self.workers[min(range(WORKERS), key=lambda i: (costs[i], self._tie.random()))]


def _tokens(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % 100_000 for word in text.split()]


def main() -> None:
    """Print the rows, means of some loads."""
    worlds = [World(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run()
    report("healing_known", statistics.mean(world.picked.known_share for world in worlds), "share")
    report("healing_known_anywhere", statistics.mean(world.anywhere.known_share for world in worlds), "share")
    report("healing_false", statistics.mean(world.anywhere.false_share for world in worlds), "share")


if __name__ == "__main__":
    main()
