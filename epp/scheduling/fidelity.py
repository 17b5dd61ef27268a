"""How right our idea of each cache is: cached tokens as predicted at the pick, against what the engine says."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry, Gauge

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.causes import ADVICE, Cause, Comparison, Errors, Evidence
from epp.prompts.namespace import parts
from epp.scheduling.outcome import Outcome, Usage
from epp.scheduling.scheduler import Pick
from epp.telemetry.tally import Distribution, Tally

_log = structlog.get_logger()

_BOUNDS = (-16384, -4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityStatus:
    """Requests whose engine reported cached tokens, since the start."""

    compared: int = 0
    equal: int = 0
    over: int = 0
    """More was predicted than the engine had."""
    under: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0
    mean_error: Mapping[str, float] = field(default_factory=dict)
    """By endpoint name: running mean of predicted minus reported tokens, newest requests weighing most."""
    causes: Mapping[str, Cause] = field(default_factory=dict)
    """By name of an endpoint whose predictions are often wrong: the likely cause."""


@dataclass(slots=True)
class _Watched:
    name: str
    errors: Errors = field(default_factory=Errors)
    cause: Cause | None = None


class Fidelity:
    """Compares prediction and report at the end of each request, and names workers whose predictions stay wrong."""

    def __init__(
        self,
        pool: Pool,
        registry: CollectorRegistry,
        evidence: Callable[[int], Evidence] = lambda _column: Evidence(events=True, complete=True),
    ) -> None:
        self._evidence = evidence
        self._counts = {"equal": 0, "over": 0, "under": 0}
        self._predicted = 0
        self._reported = 0
        self._watched: dict[int, _Watched] = {}
        self._requests = Tally(
            "epp_kv_predictions",
            "Requests whose engine reported cached tokens, by whether we had predicted as many.",
            ["result"],
            registry=registry,
        )
        self._error = Distribution(
            "epp_kv_prediction_error_tokens",
            "Cached tokens of a request: predicted minus reported.",
            _BOUNDS,
            registry=registry,
        )
        self._wrong = Gauge(
            "epp_kv_wrong_workers",
            "Workers whose cached tokens are often predicted wrongly, by likely cause.",
            ["cause"],
            registry=registry,
        )
        pool.on_leave(self._forget)

    def ended(self, outcome: Outcome) -> None:
        """Take in one request; those without tokens, report or pick teach nothing."""
        pick, usage = outcome.pick, outcome.usage
        if pick is None or usage is None or usage.cached_tokens is None or not outcome.request.prompt.has_ids:
            return
        if pick.decision.prefill is not None:
            return  # the answer counts what came over the network as cached; we predicted the prefill worker's cache
        if outcome.served in {None, pick.decision.endpoint.host_port}:
            self._compare(outcome, pick, usage, usage.cached_tokens)

    def status(self) -> FidelityStatus:
        """The section of `/status`."""
        watched = list(self._watched.values())
        return FidelityStatus(
            compared=sum(self._counts.values()),
            predicted_tokens=self._predicted,
            reported_tokens=self._reported,
            mean_error={one.name: round(one.errors.mean, 1) for one in watched},
            causes={one.name: one.cause for one in watched if one.cause is not None},
            **self._counts,
        )

    def _compare(self, outcome: Outcome, pick: Pick, usage: Usage, reported: int) -> None:
        predicted, prompt = pick.decision.cached_tokens, outcome.request.prompt
        error = predicted - reported
        result = "equal" if error == 0 else "over" if error > 0 else "under"
        self._counts[result] += 1
        self._predicted += predicted
        self._reported += reported
        self._requests.counts[(result,)] += 1
        self._error.observe(error)
        comparison = Comparison(
            predicted=predicted,
            reported=reported,
            tokens=len(prompt.tokens) + prompt.unseen_tokens,
            engine_tokens=usage.prompt_tokens,
            salted=bool(parts(prompt.namespace)[1]),
        )
        self._judge(pick.reservation.column, pick.decision.endpoint, comparison)

    def _judge(self, column: int, endpoint: Endpoint, comparison: Comparison) -> None:
        watched = self._watched.get(column)
        if watched is None:
            watched = self._watched[column] = _Watched(endpoint.name)
        evidence = self._evidence(column)
        watched.errors.add(comparison, evidence)
        cause = watched.errors.cause(evidence)
        if cause is not watched.cause:
            watched.cause = cause
            self._show_causes()
            if cause is not None:
                _log.warning(
                    "cached tokens of a worker are often predicted wrongly",
                    endpoint=endpoint.name,
                    cause=str(cause),
                    advice=ADVICE[cause],
                    mean_error_tokens=round(watched.errors.mean, 1),
                )

    def _show_causes(self) -> None:
        counts = Counter(watched.cause for watched in self._watched.values())
        causes: Iterable[Cause] = Cause
        for cause in causes:
            self._wrong.labels(str(cause)).set(counts[cause])

    def _forget(self, column: int, _endpoint: Endpoint) -> None:
        if self._watched.pop(column, None) is not None:
            self._show_causes()
