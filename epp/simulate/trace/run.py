"""Replays a trace through the real scheduler against modelled workers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.endpoints.pool import Pool
from epp.kvcache.keys import Keys, PrefixKeys
from epp.peers.group import Group
from epp.peers.prompts import OwnPrompts, PromptExchange, SentElsewhere
from epp.peers.wire import endpoint_key
from epp.prompts.prompt import Prompt, Request, TokenSource
from epp.scheduling.ejection import Ejection, EjectionRules
from epp.scheduling.outcome import Ending, Outcome
from epp.scheduling.policy import Policy
from epp.scheduling.scheduler import Pick, Scheduler
from epp.simulate.trace.requests import TraceRequest
from epp.simulate.trace.view import View
from epp.simulate.trace.worker import Worker

_STALE_SECONDS = 6.0
_OVERLAY_SECONDS = 30.0
"""How long a prompt that another picker told of is taken to be cached though no event says so."""
_BEFORE = 1 << 60
"""At the same time, messages between pickers go before what happens to requests, in their own order."""
_DECODE_SECONDS = 0.02
"""Per output token: decoding only keeps a request in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The workers, and what makes the picker's life hard."""

    workers: int = 8
    cache_blocks: int = 4096
    """Of 512 tokens, on each worker."""
    tokens_per_second: float = 8000.0
    """Prefill rate of a worker."""
    slowness: tuple[float, ...] = ()
    """How many times slower the first workers are; the others are as fast as `tokens_per_second` says."""
    view_age: float = 0.0
    """Seconds by which what a picker knows of the caches is late. Of prompts that another picker placed it knows at
    their first token at the earliest, when the engine tells of them, unless the other one tells it."""
    streamed: float = 1.0
    """Share of requests whose first token the picker sees."""
    wrong_rates: float = 1.0
    """Half of the workers are believed to be so many times faster than they are, the other half slower."""
    metrics_age: float | None = None
    """Seconds by which the engines' queues are late, read each second; None: they are not read."""
    failed: int = 0
    """The last workers, as many as this, answer every request with 500 at once; the client tries again."""
    replicas: int = 1
    """Pickers among which the requests are spread at random."""
    share_seconds: float | None = None
    """How long it takes until a picker knows of another's picks; None: they never know."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What happened; position i of every array belongs to request i of the trace."""

    ttft: NDArray[np.float64]
    """Seconds to the first token."""
    hit_tokens: NDArray[np.int64]
    believed_tokens: NDArray[np.int64]
    """Hits that the picker expected."""
    worker: NDArray[np.int64]
    tries: NDArray[np.int64]
    """Workers that were asked, the failed ones included."""
    regret: NDArray[np.float64]
    """Seconds to the first token above those on the worker that was truly the best for this request alone."""


def run(trace: Sequence[TraceRequest], policy: Callable[[random.Random], Policy], conditions: Conditions) -> Run:
    """Replay `trace`; equal arguments give equal results."""
    return _Replay(policy, conditions).run(trace)


@dataclass(frozen=True, slots=True)
class _Replica:
    """One picker, and what it has heard of the workers."""

    view: View
    prompts: PromptExchange
    scheduler: Scheduler
    metrics: EngineMetrics
    ejection: Ejection

    def pick(self, request: Request, failed: frozenset[int]) -> tuple[Pick, int]:
        """A worker that answers, and how many were asked: a failed one costs the client another try."""
        avoid: set[HostPort] = set()
        while True:
            pick = self.scheduler.pick(request, avoid=avoid)
            dead = pick.reservation.column in failed
            status = 500 if dead else 200
            self.ejection.ended(Outcome(request=request, ending=Ending.COMPLETE, pick=pick, status=status))
            if not dead:
                return pick, len(avoid) + 1
            pick.reservation.release()
            avoid.add(pick.decision.endpoint.host_port)


class _Replay:
    def __init__(self, policy: Callable[[random.Random], Policy], conditions: Conditions) -> None:
        self._now = 0.0
        self._draw = random.Random(conditions.seed)  # noqa: S311 - a simulation
        self._streamed = conditions.streamed
        slowness = (*conditions.slowness, *(1.0 for _ in range(conditions.workers)))[: conditions.workers]
        self._workers = [
            Worker(cache_blocks=conditions.cache_blocks, tokens_per_second=conditions.tokens_per_second / slow)
            for slow in slowness
        ]
        self._failed = frozenset(range(conditions.workers - conditions.failed, conditions.workers))
        self._view_age = conditions.view_age
        self._metrics_age = conditions.metrics_age
        self._read_at = 0.0
        self._keys = PrefixKeys(bytes(32))
        self._pool = Pool()
        self._pool.replace(
            Endpoint(name=f"worker-{i}", address=f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}", port=8000)
            for i in range(conditions.workers)
        )
        self._replicas = [self._replica(policy, conditions, conditions.seed + i) for i in range(conditions.replicas)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._share_seconds = conditions.share_seconds
        self._groups = [self._group(replica, i) for i, replica in enumerate(self._replicas)]
        self._told = 0

    def run(self, trace: Sequence[TraceRequest]) -> Run:
        requests = len(trace)
        result = Run(
            np.zeros(requests),
            np.zeros(requests, dtype=np.int64),
            np.zeros(requests, dtype=np.int64),
            np.zeros(requests, dtype=np.int64),
            np.ones(requests, dtype=np.int64),
            np.zeros(requests),
        )
        for i, request in enumerate(trace):
            self._advance(request.arrival)
            self._serve(i, request, result)
        return result

    def _replica(self, policy: Callable[[random.Random], Policy], conditions: Conditions, seed: int) -> "_Replica":
        draw = random.Random(seed)  # noqa: S311 - a simulation
        metrics = EngineMetrics(_STALE_SECONDS)
        ejection = Ejection(self._pool, metrics, EjectionRules(), CollectorRegistry(), lambda: self._now)
        view = View(conditions.workers, conditions.cache_blocks)
        prompts = self._prompts(view)
        scheduler = Scheduler(
            pool=self._pool,
            index=prompts.others,
            picked=lambda column, prompt: self._picked(prompts, column, prompt),
            policy=policy(draw),
            metrics=metrics,
            clock=lambda: self._now,
            suspended=lambda: ejection.places,
        )
        for column in range(conditions.workers):
            scheduler.rates.assume(column, conditions.wrong_rates ** (1 if column % 2 else -1))
        return _Replica(view, prompts, scheduler, metrics, ejection)

    def _read_metrics(self) -> None:
        """Every second, the queues as they were some time ago."""
        assert self._metrics_age is not None
        queued = [float(worker.queued(self._now)) for worker in self._workers]

        def arrive() -> None:
            for replica in self._replicas:
                for column, value in enumerate(queued):
                    replica.metrics.note(column, EngineSample(queued=value, running=1.0), self._now)

        heappush(self._events, (self._now + self._metrics_age, -1, arrive))

    def _prompts(self, view: View) -> PromptExchange:
        others = SentElsewhere(view, self._sketch, lambda _column: _OVERLAY_SECONDS, lambda: self._now)
        for column, endpoint in enumerate(self._pool.snapshot().endpoints):
            others.join(column, endpoint)
        return PromptExchange(own=OwnPrompts(self._sketch), others=others, secret_id=lambda: b"one for all")

    def _sketch(self, prompt: Prompt, step: int) -> Keys:
        return self._keys.of_prompt(prompt.tokens, prompt.namespace, step, prompt.media)

    def _picked(self, prompts: PromptExchange, column: int, prompt: Prompt) -> None:
        if self._share_seconds is not None:
            prompts.own.picked(endpoint_key(self._pool.snapshot().endpoints[column]), prompt)

    def _group(self, replica: "_Replica", i: int) -> Group | None:
        """The very load sharing that replicas run, but for the sockets."""
        if self._share_seconds is None:
            return None
        group = Group(replica.scheduler.load, i + 1, f"picker-{i}", prompts=replica.prompts)
        snapshot = self._pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            group.join(column, endpoint)
        return group

    def _share(self) -> None:
        """Put what the pickers have to tell on its way."""
        for sender in self._groups:
            while sender is not None and (data := sender.flush()) is not None:
                self._told += 1
                arrives = self._now + (self._share_seconds or 0.0)
                deliver: Callable[[], None] = partial(self._deliver, sender, data)
                heappush(self._events, (arrives, self._told - _BEFORE, deliver))

    def _deliver(self, sender: Group, data: bytes) -> None:
        for receiver in self._groups:
            if receiver is not None and receiver is not sender:
                receiver.receive(sender.name, data, self._now)

    def _advance(self, until: float) -> None:
        while self._metrics_age is not None and self._read_at <= until:
            self._happen(self._read_at)
            self._read_metrics()
            self._read_at += 1.0
        self._happen(until)

    def _happen(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self._now, _, happen = heappop(self._events)
            happen()
            self._share()
        self._now = until

    def _serve(self, i: int, request: TraceRequest, result: Run) -> None:
        replica = self._replicas[self._draw.randrange(len(self._replicas))]
        streamed = self._draw.random() < self._streamed
        prompt = Prompt(tokens=request.tokens(), source=TokenSource.REQUEST)
        asked = Request(prompt=prompt, stream=streamed, max_output_tokens=request.output_tokens)
        pick, result.tries[i] = replica.pick(asked, self._failed)
        chosen = pick.reservation.column
        worker = self._workers[chosen]
        result.worker[i] = chosen
        result.hit_tokens[i] = worker.cache.hit_tokens(request)
        result.believed_tokens[i] = pick.decision.cached_tokens
        alive = (each for at, each in enumerate(self._workers) if at not in self._failed)
        best = min(each.first_token_seconds(request, self._now) for each in alive)
        first_token = worker.take(request, self._now)
        result.ttft[i] = first_token - self._now
        result.regret[i] = first_token - self._now - best
        self._tell_views(i, request, chosen, replica, first_token)
        end = first_token + request.output_tokens * _DECODE_SECONDS
        if streamed:
            heappush(self._events, (first_token, 2 * i, pick.reservation.first_token))
        heappush(self._events, (end, 2 * i + 1, pick.reservation.release))
        self._share()

    def _tell_views(self, i: int, request: TraceRequest, worker: int, picker: _Replica, first_token: float) -> None:
        """Who picked knows at once that the prompt will be cached there, the others from the engine."""
        for n, replica in enumerate(self._replicas):
            heard = self._now if replica is picker else first_token
            heard = max(heard, self._now + self._view_age)
            if heard <= self._now:
                replica.view.use(worker, request)
            else:
                order = i * len(self._replicas) + n - 2 * _BEFORE
                heappush(self._events, (heard, order, replica.view.later(worker, request)))
