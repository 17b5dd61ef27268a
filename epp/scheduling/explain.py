"""Why a request went where it went: the last decisions, with all that the policy saw."""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice, Policy

_log = structlog.get_logger(__name__)

_MOST_TOLD = 8
"""Candidates in a log line or a header, the cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """One candidate as the policy saw it; None: not known. Seconds and tokens as in `Candidates`."""

    name: str
    host_port: HostPort
    cost: float | None
    """By the policy's own measure, less is better; None: filtered out."""
    cached_tokens: int
    confidence: float | None = None
    """How sure the index was of them."""
    in_flight: int | None
    """None, here and below also where the policy looks at no load."""
    prefill_tokens: int | None
    decode_tokens: int | None
    wait_seconds: float | None
    work_seconds: float
    queued: float | None
    running: float | None
    kv_used: float | None

    @property
    def ttft(self) -> float:
        """Predicted seconds to the first token, as far as they are known."""
        return round((self.wait_seconds or 0.0) + self.work_seconds, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision."""

    request_id: str
    at: float
    """Unix time."""
    model: str
    prompt_tokens: int
    stream: bool
    policy: str
    chosen: str
    """Name of the endpoint."""
    reason: str
    candidates: tuple[CandidateRecord, ...]


class Recorded:
    """Another policy whose last decisions can be looked at; they are written out only when somebody looks."""

    def __init__(self, policy: Policy, keep: int, *, log_share: float = 0.0, draw: random.Random | None = None) -> None:
        self.policy = policy
        self._last: deque[_Made] = deque(maxlen=keep)
        self._log_share = log_share
        self._draw = draw or random.Random()  # noqa: S311 - sampling

    @property
    def name(self) -> str:
        """That of the policy whose decisions are kept, which may be exchanged."""
        return self.policy.name

    @property
    def reads_prompts(self) -> bool:
        """As that policy."""
        return self.policy.reads_prompts

    @property
    def reads_load(self) -> bool:
        """As that policy."""
        return self.policy.reads_load

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """What the other policy picks."""
        choice = self.policy.pick(request, candidates)
        made = _Made(
            time.time(), request.id, request.model, request.stream, self.policy.name, _seen(candidates), choice
        )
        self._last.append(made)
        if self._log_share and self._draw.random() < self._log_share:
            _tell(_record(made))
        return choice

    def records(self) -> list[DecisionRecord]:
        """The last decisions, newest first; may be called in a thread while others are made."""
        return [_record(made) for made in reversed(list(self._last))]

    def newest(self) -> DecisionRecord | None:
        """The last decision; None where none was made, or none is kept."""
        return _record(self._last[-1]) if self._last else None


def decide_again(record: DecisionRecord, policy: Policy) -> DecisionRecord:
    """What `policy` would have decided from what was known then.

    Raises ValueError for a decision at which no load was looked at, if `policy` needs it.
    """
    if policy.reads_load and any(row.wait_seconds is None for row in record.candidates):
        raise ValueError(f"{record.policy} looked at no load: {policy.name} cannot decide again without it")
    candidates = _candidates(record)
    choice = policy.pick(Request(id=record.request_id, model=record.model, stream=record.stream), candidates)
    return _record(
        _Made(record.at, record.request_id, record.model, record.stream, policy.name, _seen(candidates), choice)
    )


class _Seen(NamedTuple):
    """What is kept of the candidates: no header of the request, no prompt."""

    endpoints: tuple[Endpoint, ...]
    prompt_tokens: int
    cached_tokens: NDArray[np.int64]
    confidence: NDArray[np.float64]
    in_flight: NDArray[np.int64]
    prefill_tokens: NDArray[np.int64]
    decode_tokens: NDArray[np.int64]
    wait_seconds: NDArray[np.float64]
    work_seconds: NDArray[np.float64]
    queued: NDArray[np.float64]
    running: NDArray[np.float64]
    kv_used: NDArray[np.float64]
    load_known: bool


class _Made(NamedTuple):
    at: float
    request_id: str
    model: str
    stream: bool
    policy: str
    seen: _Seen
    choice: Choice


def _seen(candidates: Candidates) -> _Seen:
    return _Seen(
        candidates.endpoints,
        candidates.prompt_tokens,
        candidates.cached_tokens,
        candidates.confidence,
        candidates.in_flight,
        candidates.prefill_tokens,
        candidates.decode_tokens,
        candidates.wait_seconds,
        candidates.work_seconds,
        candidates.queued,
        candidates.running,
        candidates.kv_used,
        candidates.load_known,
    )


def _record(made: _Made) -> DecisionRecord:
    seen, choice = made.seen, made.choice
    return DecisionRecord(
        request_id=made.request_id,
        at=made.at,
        model=made.model,
        prompt_tokens=seen.prompt_tokens,
        stream=made.stream,
        policy=made.policy,
        chosen=seen.endpoints[choice.best].name,
        reason=choice.reason,
        candidates=tuple(
            CandidateRecord(
                name=endpoint.name,
                host_port=endpoint.host_port,
                cost=_known(choice.costs[i]),
                cached_tokens=int(seen.cached_tokens[i]),
                confidence=_known(seen.confidence[i]),
                in_flight=int(seen.in_flight[i]) if seen.load_known else None,
                prefill_tokens=int(seen.prefill_tokens[i]) if seen.load_known else None,
                decode_tokens=int(seen.decode_tokens[i]) if seen.load_known else None,
                wait_seconds=_known(seen.wait_seconds[i]),
                work_seconds=float(seen.work_seconds[i]),
                queued=_known(seen.queued[i]),
                running=_known(seen.running[i]),
                kv_used=_known(seen.kv_used[i]),
            )
            for i, endpoint in enumerate(seen.endpoints)
        ),
    )


def _candidates(record: DecisionRecord) -> Candidates:
    rows = record.candidates

    def whole(value: Callable[[CandidateRecord], int | None]) -> NDArray[np.int64]:
        return np.array([value(row) or 0 for row in rows], dtype=np.int64)

    def real(value: Callable[[CandidateRecord], float | None]) -> NDArray[np.float64]:
        return np.array([np.nan if (found := value(row)) is None else found for row in rows])

    return Candidates(
        endpoints=tuple(_endpoint(row) for row in rows),
        columns=np.arange(len(rows)),
        cached_tokens=whole(lambda row: row.cached_tokens),
        confidence=real(lambda row: row.confidence),
        in_flight=whole(lambda row: row.in_flight),
        prefill_tokens=whole(lambda row: row.prefill_tokens),
        decode_tokens=whole(lambda row: row.decode_tokens),
        wait_seconds=real(lambda row: row.wait_seconds),
        work_seconds=real(lambda row: row.work_seconds),
        queued=real(lambda row: row.queued),
        running=real(lambda row: row.running),
        kv_used=real(lambda row: row.kv_used),
        prompt_tokens=record.prompt_tokens,
        now=record.at,
    )


def _endpoint(row: CandidateRecord) -> Endpoint:
    address, _, port = row.host_port.rpartition(":")
    return Endpoint(name=row.name, address=address.strip("[]"), port=int(port))


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def cheapest(record: DecisionRecord) -> list[CandidateRecord]:
    """The candidates that matter, by what they would have cost."""
    return sorted(record.candidates, key=lambda row: np.inf if row.cost is None else row.cost)[:_MOST_TOLD]


def _tell(record: DecisionRecord) -> None:
    """One sampled line; token counts of other tenants' prompts are in it, so it goes to the operator's log only."""
    _log.info(
        "decision",
        request_id=record.request_id,
        chosen=record.chosen,
        reason=record.reason,
        prompt_tokens=record.prompt_tokens,
        candidates=[
            {
                "name": row.name,
                "cost": row.cost,
                "cached_tokens": row.cached_tokens,
                "in_flight": row.in_flight,
                "predicted_ttft": row.ttft,
            }
            for row in cheapest(record)
        ],
    )
