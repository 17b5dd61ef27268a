"""Small pools for tests: endpoints, a clock that is set by hand, an index that says what it is told."""

from dataclasses import dataclass, field

import numpy as np

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt, Request, TokenSource
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice, Policy
from epp.scheduling.scheduler import Scheduler


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ToldIndex:
    """Says that column i holds `cached[i]` tokens of any prompt."""

    cached: list[int] = field(default_factory=list)

    def match(self, prompt: Prompt) -> Match:
        return Match(np.minimum(np.array(self.cached, dtype=np.int64), max(len(prompt.tokens) - 1, 0)))


def endpoint(i: int, **fields: object) -> Endpoint:
    return Endpoint(name=f"worker-{i}", address=f"10.0.0.{i + 1}", port=8000, **fields)  # type: ignore[arg-type]


@dataclass
class World:
    scheduler: Scheduler
    pool: Pool
    index: ToldIndex
    clock: HandClock

    def candidates(self, request: Request, **headers: str) -> Candidates:
        """What a policy would see."""
        seen: list[Candidates] = []

        class Look:
            name = "look"
            reads_prompts = True
            reads_load = True

            def pick(self, request: Request, candidates: Candidates) -> Choice:
                seen.append(candidates)
                return Choice(0, np.zeros(len(candidates)), "")

        looking = Scheduler(pool=self.pool, index=self.index, policy=Look(), clock=self.clock)
        looking.pick(request, header=lambda name: headers.get(name.replace("-", "_"), ""))
        return seen[0]

    def names_picked(self, count: int, request: Request) -> list[str]:
        return [self.scheduler.pick(request).decision.endpoint.name for _ in range(count)]


def world(policy: Policy, *, endpoints: int = 4, fallbacks: int = 0) -> World:
    pool, index, clock = Pool(), ToldIndex(), HandClock()
    pool.replace([endpoint(i) for i in range(endpoints)])
    scheduler = Scheduler(pool=pool, index=index, policy=policy, clock=clock, fallbacks=fallbacks)
    return World(scheduler, pool, index, clock)


def request_of(tokens: int, *, stream: bool = True, first: int = 0, session: str = "") -> Request:
    ids = np.arange(first, first + tokens, dtype=np.uint32)
    return Request(prompt=Prompt(tokens=ids, source=TokenSource.TOKENIZER), stream=stream, session=session)
