"""From a request to a pick: candidates, policy, reservation, in one step without a pause."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.metrics import EngineMetrics, EngineView
from epp.endpoints.pool import Pool, PoolSnapshot
from epp.kvcache.prefix_index import PrefixIndex
from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates, Header, no_header
from epp.scheduling.load import Clock, Load, Reservation, Work
from epp.scheduling.policy import Choice, Policy
from epp.scheduling.rates import Rates

_BYTES_PER_TOKEN = 4
"""Of a body whose tokens are not known: what most tokenizers make of English and JSON."""


_SMOOTHING = 0.05


class NoEndpointError(Exception):
    """Nothing may serve the request; the text says why and is safe to show to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The endpoint to serve a request, ordered fallbacks, and why."""

    endpoint: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()
    set_headers: tuple[tuple[str, str], ...] = ()
    """More headers for the chosen worker, such as Dynamo's instance id."""
    model: str | None = None
    """Model name to put in the body in place of the client's; None: the body stays as it is."""
    cached_tokens: int = 0
    """Tokens of the prompt that the index says the endpoint holds."""
    predicted_ttft: float = 0.0
    """Seconds to the first token as predicted at the pick."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pick:
    """A decision and the load that it put on its endpoint."""

    decision: Decision
    reservation: Reservation


class Scheduler:
    """Chooses among the pool's endpoints with one policy, and keeps the load and rates that the choice needs."""

    def __init__(
        self,
        *,
        pool: Pool,
        index: PrefixIndex,
        policy: Policy,
        metrics: EngineMetrics | None = None,
        clock: Clock = time.monotonic,
        fallbacks: int = 0,
        suspended: Callable[[], Collection[HostPort]] = frozenset,
    ) -> None:
        self._pool = pool
        self._index = index
        self.policy = policy
        self._metrics = metrics or EngineMetrics(0.0)
        self._clock = clock
        self._fallbacks = fallbacks
        self._usual_prefill = 0.0
        self._suspended = suspended
        self.rates = Rates()
        self.load = Load(clock, self.rates.observe)
        snapshot = pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            self._join(column, endpoint)
        pool.on_join(self._join)
        pool.on_leave(self.load.leave)
        pool.on_leave(self._metrics.leave)

    def pick(
        self,
        request: Request,
        *,
        subset: Collection[str] | None = None,
        avoid: Collection[HostPort] = (),
        shown: bool = True,
        header: Header = no_header,
    ) -> Pick:
        """Choose an endpoint and reserve its share of load.

        `subset` holds the only hosts that are allowed, as `ip:port` or `ip` (None: the whole pool); endpoints in
        `avoid` are taken only when nothing else is left. `shown` tells whether the gateway will show the body of the
        response; `header` reads a header of the request.

        Raises NoEndpointError when no endpoint is left.
        """
        snapshot = self._pool.snapshot()
        if not snapshot.endpoints:
            raise NoEndpointError("no ready endpoint in the pool")
        positions = _allowed(snapshot, subset, avoid, self._suspended())
        if not len(positions):
            raise NoEndpointError("no ready endpoint in the subset that the gateway allows")
        candidates = self._candidates(request, snapshot, positions, header)
        choice = self.policy.pick(request, candidates)
        work = _work(request, candidates, choice.best, shown=shown)
        reservation = self.load.reserve(int(candidates.columns[choice.best]), work)
        self._usual_prefill += _SMOOTHING * (work.prefill_seconds - self._usual_prefill)
        return Pick(self._decision(candidates, choice), reservation)

    def move(self, pick: Pick, request: Request, served: HostPort) -> None:
        """Put the pick's load on the endpoint that serves in its place; without effect when it is not in the pool."""
        snapshot = self._pool.snapshot()
        position = snapshot.position.get(served)
        if position is not None:
            candidates = self._candidates(request, snapshot, [position], no_header)
            work = _work(request, candidates, 0, shown=pick.reservation.work.shown)
            pick.reservation.move(int(candidates.columns[0]), work)

    def _join(self, column: int, endpoint: Endpoint) -> None:
        self._metrics.join(column, endpoint)
        self.rates.join(column, endpoint)
        self.load.join(column, endpoint)

    def _candidates(
        self, request: Request, snapshot: PoolSnapshot, positions: Sequence[int], header: Header
    ) -> Candidates:
        if len(positions) == len(snapshot.endpoints):
            endpoints, columns = snapshot.endpoints, snapshot.columns
        else:
            endpoints = tuple(snapshot.endpoints[i] for i in positions)
            columns = snapshot.columns[np.array(positions)]
        now, prompt_tokens = self._clock(), _prompt_tokens(request)
        self.load.advance(now)
        engines = self._metrics.view(columns, now)
        in_flight, wait = self.load.in_flight.take(columns), self.load.wait_seconds(columns, now)
        if engines.any_queued:
            wait += self._foreign_seconds(in_flight, engines)
        cached = _take(self._index.match(request.prompt).cached_tokens, columns)
        return Candidates(
            endpoints=endpoints,
            columns=columns,
            cached_tokens=cached,
            in_flight=in_flight,
            prefill_tokens=self.load.prefill_tokens.take(columns),
            decode_tokens=self.load.decode_tokens.take(columns),
            wait_seconds=wait,
            work_seconds=self.rates.seconds(columns, prompt_tokens - cached, prompt_tokens),
            queued=engines.queued,
            running=engines.running,
            kv_used=engines.kv_used,
            prompt_tokens=prompt_tokens,
            header=header,
            sample=self._metrics.sample,
            now=now,
        )

    def _foreign_seconds(self, in_flight: NDArray[np.int64], engines: EngineView) -> NDArray[np.float64]:
        """Wait for what others sent to the engines: requests that queue there beyond those that we sent."""
        foreign: NDArray[np.float64] = np.minimum(np.maximum(engines.known_all - in_flight, 0.0), engines.known_queued)
        return foreign * self._usual_prefill

    def _decision(self, candidates: Candidates, choice: Choice) -> Decision:
        endpoint = candidates.endpoints[choice.best]
        return Decision(
            endpoint=endpoint,
            fallbacks=self._next_best(candidates, choice) if self._fallbacks else (),
            set_headers=_worker_headers(endpoint),
            cached_tokens=int(candidates.cached_tokens[choice.best]),
            predicted_ttft=float(candidates.wait_seconds[choice.best] + candidates.work_seconds[choice.best]),
            reason=choice.reason,
        )

    def _next_best(self, candidates: Candidates, choice: Choice) -> tuple[Endpoint, ...]:
        order = [i for i in np.argsort(choice.costs, kind="stable").tolist() if i != choice.best]
        return tuple(candidates.endpoints[i] for i in order[: self._fallbacks])


def _work(request: Request, candidates: Candidates, at: int, *, shown: bool) -> Work:
    return Work(
        prefill_tokens=candidates.prompt_tokens - int(candidates.cached_tokens[at]),
        context_tokens=candidates.prompt_tokens,
        prefill_seconds=float(candidates.work_seconds[at]),
        shown=shown and request.stream,
    )


def _prompt_tokens(request: Request) -> int:
    return len(request.prompt.tokens) or request.size // _BYTES_PER_TOKEN


def _worker_headers(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    if endpoint.instance_id is None:
        return ()
    return (("x-dynamo-worker-instance-id", str(endpoint.instance_id)),)


def _take(values: NDArray[np.int64], columns: NDArray[np.intp]) -> NDArray[np.int64]:
    """`values[columns]`, with 0 for columns that `values` does not reach."""
    if len(columns) and len(values) > columns[-1]:  # columns rise
        return values.take(columns)
    known = columns < len(values)
    taken = np.zeros(len(columns), dtype=np.int64)
    taken[known] = values[columns[known]]
    return taken


def _allowed(
    snapshot: PoolSnapshot,
    subset: Collection[str] | None,
    avoid: Collection[HostPort],
    suspended: Collection[HostPort],
) -> Sequence[int]:
    """Positions that may be picked: neither suspended nor avoided ones while others are left."""
    if subset is None and not avoid and not suspended:
        return range(len(snapshot.endpoints))
    allowed = [i for i, endpoint in enumerate(snapshot.endpoints) if subset is None or _named(endpoint, subset)]
    for shunned in ({*avoid, *suspended}, suspended, avoid):
        if left := [i for i in allowed if snapshot.endpoints[i].host_port not in shunned]:
            return left
    return allowed


def _named(endpoint: Endpoint, subset: Collection[str]) -> bool:
    return endpoint.host_port in subset or endpoint.address in subset
