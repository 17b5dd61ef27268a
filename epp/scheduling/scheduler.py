"""From a request to a pick: candidates, policy, reservation, in one step without a pause."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.pool import Pool, PoolSnapshot
from epp.kvcache.prefix_index import PrefixIndex
from epp.prompts.prompt import Prompt, Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.load import Load, Reservation
from epp.scheduling.policy import Policy


class NoEndpointError(Exception):
    """Nothing may serve the request; the text says why and is safe to show to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The endpoint to serve a request, ordered fallbacks, and why."""

    endpoint: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()
    set_headers: tuple[tuple[str, str], ...] = ()
    """More headers for the chosen worker, such as Dynamo's instance id."""
    cached_tokens: int = 0
    """Tokens of the prompt that the index says the endpoint holds."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pick:
    """A decision and the load that it put on its endpoint."""

    decision: Decision
    reservation: Reservation


class Scheduler:
    """Chooses among the pool's endpoints with one policy."""

    def __init__(self, *, pool: Pool, index: PrefixIndex, load: Load, policy: Policy, fallbacks: int = 0) -> None:
        self._pool = pool
        self._index = index
        self._load = load
        self._policy = policy
        self._fallbacks = fallbacks

    def pick(
        self, request: Request, *, subset: Collection[str] | None = None, avoid: Collection[HostPort] = ()
    ) -> Pick:
        """Choose an endpoint and reserve its share of load.

        `subset` holds the only hosts that are allowed, as `ip:port` or `ip` (None: the whole pool); endpoints in
        `avoid` are taken only when nothing else is left.

        Raises NoEndpointError when no endpoint is left.
        """
        snapshot = self._pool.snapshot()
        if not snapshot.endpoints:
            raise NoEndpointError("no ready endpoint in the pool")
        positions = _allowed(snapshot, subset, avoid)
        if not positions:
            raise NoEndpointError("no ready endpoint in the subset that the gateway allows")
        candidates = self._candidates(request.prompt, snapshot, positions)
        choice = self._policy.pick(request, candidates)
        best, *others = choice.order
        cached = int(candidates.cached_tokens[best])
        prompt_tokens = len(request.prompt.tokens)
        reservation = self._load.reserve(
            int(candidates.columns[best]), prefill_tokens=prompt_tokens - cached, context_tokens=prompt_tokens
        )
        endpoint = candidates.endpoints[best]
        decision = Decision(
            endpoint=endpoint,
            fallbacks=tuple(candidates.endpoints[i] for i in others[: self._fallbacks]),
            set_headers=_worker_headers(endpoint),
            cached_tokens=cached,
            reason=choice.reason,
        )
        return Pick(decision, reservation)

    def _candidates(self, prompt: Prompt, snapshot: PoolSnapshot, positions: list[int]) -> Candidates:
        if len(positions) == len(snapshot.endpoints):
            endpoints, columns = snapshot.endpoints, snapshot.columns
        else:
            endpoints = tuple(snapshot.endpoints[i] for i in positions)
            columns = snapshot.columns[positions]
        return Candidates(
            endpoints=endpoints,
            columns=columns,
            cached_tokens=_take(self._index.match(prompt).cached_tokens, columns),
            in_flight=self._load.in_flight[columns],
            prefill_tokens=self._load.prefill_tokens[columns],
            decode_tokens=self._load.decode_tokens[columns],
        )


def _worker_headers(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    if endpoint.instance_id is None:
        return ()
    return (("x-dynamo-worker-instance-id", str(endpoint.instance_id)),)


def _take(values: NDArray[np.int64], columns: NDArray[np.intp]) -> NDArray[np.int64]:
    """`values[columns]`, with 0 for columns that `values` does not reach."""
    known = columns < len(values)
    if known.all():
        return values[columns]
    taken = np.zeros(len(columns), dtype=np.int64)
    taken[known] = values[columns[known]]
    return taken


def _allowed(snapshot: PoolSnapshot, subset: Collection[str] | None, avoid: Collection[HostPort]) -> list[int]:
    """Positions that may be picked."""
    if subset is None and not avoid:
        return list(range(len(snapshot.endpoints)))
    allowed = [i for i, endpoint in enumerate(snapshot.endpoints) if subset is None or _named(endpoint, subset)]
    fresh = [i for i in allowed if snapshot.endpoints[i].host_port not in avoid]
    return fresh or allowed


def _named(endpoint: Endpoint, subset: Collection[str]) -> bool:
    return endpoint.host_port in subset or endpoint.address in subset
