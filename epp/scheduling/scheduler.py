"""From a request to a pick: candidates, policy, reservation, in one step without a pause."""

import time
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint, HostPort, Role
from epp.endpoints.metrics import EngineMetrics, EngineView
from epp.endpoints.pool import Pool, PoolSnapshot
from epp.kvcache.prefix_index import PrefixIndex
from epp.prompts.prompt import Prompt, Request
from epp.scheduling.candidates import Candidates, Header, no_header
from epp.scheduling.disaggregation import Disaggregation
from epp.scheduling.eligible import Eligible, NoEndpointError
from epp.scheduling.load import Clock, Load, Reservation, Work
from epp.scheduling.models import Models
from epp.scheduling.policy import Choice, Policy
from epp.scheduling.rates import Rates
from epp.scheduling.worker_headers import worker_headers

_BYTES_PER_TOKEN = 4
"""Of a body whose tokens are not known: what most tokenizers make of English and JSON."""


_SMOOTHING = 0.05
_NEW_WORKER_QUEUE = 4.0
"""Usual prefills that a worker seems to have queued on the moment it is new."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint to serve a request, ordered fallbacks, and why."""

    endpoint: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()
    prefill: Endpoint | None = None
    """Who prefills in place of `endpoint`; None: the endpoint itself."""
    set_headers: tuple[tuple[str, str], ...] = ()
    """More headers for the chosen worker, such as Dynamo's instance id."""
    model: str | None = None
    """Model name to put in the body in place of the client's; None: the body stays as it is."""
    cached_tokens: int = 0
    """Tokens of the prompt that the index says the endpoint holds."""
    predicted_ttft: float = 0.0
    """Seconds to the first token as predicted at the pick; of the prefill alone if the policy looks at no load."""
    reason: str = ""


class Pick(msgspec.Struct, frozen=True):
    """A decision and the load that it put on its endpoint."""

    decision: Decision
    reservation: Reservation


class Look(msgspec.Struct, frozen=True):
    """What a decision sees and would choose, with nothing reserved."""

    candidates: Candidates
    choice: Choice


class _Prefill(msgspec.Struct, frozen=True):
    candidates: Candidates
    choice: Choice


def _nobody_hears(_column: int, _prompt: Prompt) -> None:
    """Picks are told to nobody."""


def _no_doubt(columns: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.ones(len(columns))


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
        disaggregation: Disaggregation | None = None,
        models: Models | None = None,
        slow_start_seconds: float = 0.0,
        picked: Callable[[int, Prompt], None] = _nobody_hears,
        confidence: Callable[[NDArray[np.intp]], NDArray[np.float64]] = _no_doubt,
    ) -> None:
        """`picked` hears the column and the prompt of every pick.

        `confidence` says how sure `index` is of what each of some columns holds, 0 to 1.
        """
        self._pool = pool
        self._index = index
        self.policy = policy
        self._metrics = metrics or EngineMetrics(0.0)
        self._clock = clock
        self._fallbacks = fallbacks
        self._usual_prefill = 0.0
        self._picked = picked
        self._confidence = confidence
        self._slow_start = slow_start_seconds
        self._joined_at: NDArray[np.float64] = np.full(0, -np.inf)
        self._young_until = -np.inf
        self._zeros: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._unknown: NDArray[np.float64] = np.zeros(0)
        self._eligible = Eligible(suspended)
        self._disaggregation = disaggregation
        self._models = models
        self.rates = Rates()
        self.load = Load(clock, self.rates.observe)
        snapshot = pool.snapshot()
        for column, endpoint in zip(snapshot.columns.tolist(), snapshot.endpoints, strict=True):
            self._join(column, endpoint)
        self._joined_at[:], self._young_until = -np.inf, -np.inf  # who was there before us is not new
        pool.on_join(self._join)
        pool.on_leave(self.load.leave)
        pool.on_leave(self._metrics.leave)

    @property
    def reads_prompts(self) -> bool:
        """Whether picks depend on what requests ask to be computed."""
        return self.policy.reads_prompts or self._eligible.split

    @property
    def reads_load(self) -> bool:
        """Whether picks depend on load; those that depend on prompts are taken to do so."""
        return self.policy.reads_load or self.reads_prompts

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

        Raises NoEndpointError when no endpoint is left, UnknownModelError for a model that is not served.
        """
        model = self._models.rewritten(request) if self._models is not None else None
        snapshot = self._pool.snapshot()
        if not snapshot.endpoints:
            raise NoEndpointError("no ready endpoint in the pool")
        positions = self._eligible.decode(snapshot, subset, avoid)
        if not len(positions):
            raise NoEndpointError("no ready endpoint that decodes, in what the gateway allows")
        see = self._candidates if self.reads_load or len(request.prompt.tokens) else self._bare
        candidates = see(request, snapshot, positions, header)
        prefill = None
        if self._disaggregation is not None and self._eligible.split:
            prefill = self._prefill(self._disaggregation, request, snapshot, candidates, avoid)
            if prefill is not None:
                # The prompt comes over the network: what is cached or queued here for prefill matters no more.
                nothing = np.zeros(len(candidates))
                candidates = replace(candidates, work_seconds=nothing, wait_seconds=nothing)
        choice = self.policy.pick(request, candidates)
        pick = self._reserved(request, snapshot, candidates, choice, prefill, shown=shown)
        return pick if model is None else replace(pick, decision=replace(pick.decision, model=model))

    def _prefill(
        self,
        disaggregation: Disaggregation,
        request: Request,
        snapshot: PoolSnapshot,
        decode: Candidates,
        avoid: Collection[HostPort],
    ) -> "_Prefill | None":
        """Who prefills, if not the decode worker itself. Raises NoEndpointError where that may not be."""
        positions = self._eligible.prefill(snapshot, avoid)
        must = any(each.instance_id is not None and Role.PREFILL not in each.roles for each in decode.endpoints)
        if not len(positions):
            disaggregation.none_there(decode, must=must)
            return None
        candidates = self._candidates(request, snapshot, positions, decode.header)
        if not must and not disaggregation.rules.wants(decode, candidates):
            disaggregation.count("aggregated")
            return None
        disaggregation.count("disaggregated")
        return _Prefill(candidates, disaggregation.policy.pick(request, candidates))

    def _reserved(
        self,
        request: Request,
        snapshot: PoolSnapshot,
        candidates: Candidates,
        choice: Choice,
        prefill: "_Prefill | None",
        *,
        shown: bool,
    ) -> Pick:
        work = _work(request, candidates, choice.best, shown=shown)
        self.load.picks += 1
        first = None
        if prefill is not None:
            at = prefill.choice.best
            first = self.load.reserve(
                int(prefill.candidates.columns[at]), _work(request, prefill.candidates, at, shown=shown)
            )
            work = replace(work, prefill_tokens=0, prefill_seconds=0.0)
        reservation = self.load.reserve(int(candidates.columns[choice.best]), work, prefill=first)
        seconds = work.prefill_seconds if first is None else first.work.prefill_seconds
        self._usual_prefill += _SMOOTHING * (seconds - self._usual_prefill)
        for reserved in (first, reservation):
            if reserved is not None:
                self._picked(reserved.column, request.prompt)
        return Pick(self._decision(request, snapshot, candidates, choice, prefill), reservation)

    def move(self, pick: Pick, request: Request, served: HostPort) -> None:
        """Put the pick's load on the endpoint that serves in its place; without effect when it is not in the pool."""
        snapshot = self._pool.snapshot()
        position = snapshot.position.get(served)
        if position is not None:
            candidates = self._candidates(request, snapshot, [position], no_header)
            work = _work(request, candidates, 0, shown=pick.reservation.work.shown)
            pick.reservation.move(int(candidates.columns[0]), work)

    def look(self, request: Request, *, subset: Collection[str] | None = None, header: Header = no_header) -> Look:
        """What would be picked among those that decode, if it were ours to pick. Raises NoEndpointError."""
        snapshot = self._pool.snapshot()
        positions = self._eligible.decode(snapshot, subset, ())
        if not len(positions):
            raise NoEndpointError("no ready endpoint that decodes")
        candidates = self._candidates(request, snapshot, positions, header)
        return Look(candidates, self.policy.pick(request, candidates))

    def follow(self, request: Request, look: Look, served: HostPort) -> Pick | None:
        """Reserve the load on the endpoint to which somebody else sent the request; None when it is not in the pool."""
        snapshot, candidates = self._pool.snapshot(), look.candidates
        position = snapshot.position.get(served)
        if position is None:
            return None
        endpoint = snapshot.endpoints[position]
        at = next((i for i, each in enumerate(candidates.endpoints) if each is endpoint), None)
        if at is None:
            at, candidates = 0, self._candidates(request, snapshot, [position], no_header)
        choice = Choice(at, np.zeros(len(candidates)), "somebody else's pick")
        return self._reserved(request, snapshot, candidates, choice, None, shown=True)

    def _join(self, column: int, endpoint: Endpoint) -> None:
        self._metrics.join(column, endpoint)
        missing = column + 1 - len(self._joined_at)
        if missing > 0:
            self._joined_at = np.append(self._joined_at, np.full(missing, -np.inf))
        if self._pool.snapshot().endpoints:  # else nobody was there before: it is no newer than the others
            self._joined_at[column] = now = self._clock()
            self._young_until = now + self._slow_start
        else:
            self._joined_at[column] = -np.inf
        self.rates.join(column, endpoint)
        self.load.join(column, endpoint)

    def _candidates(
        self, request: Request, snapshot: PoolSnapshot, positions: Sequence[int], header: Header
    ) -> Candidates:
        endpoints, columns = _at(snapshot, positions)
        now, prompt_tokens = self._clock(), _prompt_tokens(request)
        self.load.advance(now)
        engines = self._metrics.view(columns, now)
        load = self.load.view(columns, now)
        wait = load.wait_seconds
        if engines.any_queued:
            wait += self._foreign_seconds(load.in_flight, engines)
        if now < self._young_until:
            wait += self._warm_up_seconds(columns, now)
        uncached: NDArray[np.int64] | int
        if len(request.prompt.tokens):
            cached = _take(self._index.match(request.prompt).cached_tokens, columns)
            uncached = prompt_tokens - cached
        else:
            cached, uncached = np.zeros(len(columns), dtype=np.int64), prompt_tokens
        return Candidates(
            endpoints=endpoints,
            columns=columns,
            cached_tokens=cached,
            confidence=self._confidence(columns),
            in_flight=load.in_flight,
            prefill_tokens=load.prefill_tokens,
            decode_tokens=load.decode_tokens,
            wait_seconds=wait,
            work_seconds=self.rates.seconds(columns, uncached, prompt_tokens),
            queued=engines.queued,
            running=engines.running,
            kv_used=engines.kv_used,
            prompt_tokens=prompt_tokens,
            header=header,
            sample=self._metrics.sample,
            now=now,
            picks_elsewhere=self.load.picks_elsewhere,
        )

    def _bare(self, request: Request, snapshot: PoolSnapshot, positions: Sequence[int], header: Header) -> Candidates:
        """The candidates for a policy that looks at neither load nor prompts: a tenth of an exchange is saved."""
        endpoints, columns = _at(snapshot, positions)
        now, prompt_tokens = self._clock(), _prompt_tokens(request)
        self.load.advance(now)
        if len(self._zeros) != len(columns):
            self._zeros, self._unknown = np.zeros(len(columns), dtype=np.int64), np.full(len(columns), np.nan)
        return Candidates(
            endpoints=endpoints,
            columns=columns,
            cached_tokens=self._zeros,
            confidence=self._unknown,
            in_flight=self._zeros,
            prefill_tokens=self._zeros,
            decode_tokens=self._zeros,
            wait_seconds=self._unknown,
            work_seconds=self.rates.seconds(columns, prompt_tokens, prompt_tokens),
            queued=self._unknown,
            running=self._unknown,
            kv_used=self._unknown,
            prompt_tokens=prompt_tokens,
            header=header,
            sample=self._metrics.sample,
            now=now,
            load_known=False,
        )

    def _foreign_seconds(self, in_flight: NDArray[np.int64], engines: EngineView) -> NDArray[np.float64]:
        """Wait for what others sent to the engines: requests that queue there beyond those that we sent."""
        foreign: NDArray[np.float64] = np.minimum(np.maximum(engines.known_all - in_flight, 0.0), engines.known_queued)
        return foreign * self._usual_prefill

    def _warm_up_seconds(self, columns: NDArray[np.intp], now: float) -> NDArray[np.float64]:
        """A new worker compiles and warms up: until then it seems busier than it is, less and less so."""
        left = np.maximum(1.0 - (now - self._joined_at.take(columns)) / self._slow_start, 0.0)
        return left * (self._usual_prefill * _NEW_WORKER_QUEUE)

    def _decision(
        self,
        request: Request,
        snapshot: PoolSnapshot,
        candidates: Candidates,
        choice: Choice,
        prefill: "_Prefill | None",
    ) -> Decision:
        endpoint = candidates.endpoints[choice.best]
        told, at = (candidates, choice.best) if prefill is None else (prefill.candidates, prefill.choice.best)
        first = None if prefill is None else told.endpoints[at]
        return Decision(
            endpoint=endpoint,
            fallbacks=self._next_best(candidates, choice) if self._fallbacks else (),
            prefill=first,
            set_headers=worker_headers(
                endpoint, first, self._encoders(request, snapshot), self._eligible.has_several_ranks
            ),
            cached_tokens=int(told.cached_tokens[at]),
            predicted_ttft=float(told.work_seconds[at] + (told.wait_seconds[at] if told.load_known else 0.0)),
            reason=choice.reason,
        )

    def _encoders(self, request: Request, snapshot: PoolSnapshot) -> Sequence[Endpoint]:
        """One encoder for each image or sound, least busy first."""
        items = max(request.media_items, len(request.prompt.media))
        if not items:
            return ()
        positions = self._eligible.encode(snapshot)
        order = sorted(positions, key=lambda i: int(self.load.in_flight[snapshot.columns[i]]))
        return [snapshot.endpoints[i] for i in order[:items]]

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


def _at(snapshot: PoolSnapshot, positions: Sequence[int]) -> tuple[tuple[Endpoint, ...], NDArray[np.intp]]:
    if len(positions) == len(snapshot.endpoints):
        return snapshot.endpoints, snapshot.columns
    return tuple(snapshot.endpoints[i] for i in positions), snapshot.columns[np.array(positions)]


def _prompt_tokens(request: Request) -> int:
    prompt = request.prompt
    return len(prompt.tokens) + prompt.unseen_tokens or request.size // _BYTES_PER_TOKEN


def _take(values: NDArray[np.int64], columns: NDArray[np.intp]) -> NDArray[np.int64]:
    """`values[columns]`, with 0 for columns that `values` does not reach."""
    if len(columns) and len(values) > columns[-1]:  # columns rise
        return values.take(columns)
    known = columns < len(values)
    taken = np.zeros(len(columns), dtype=np.int64)
    taken[known] = values[columns[known]]
    return taken
