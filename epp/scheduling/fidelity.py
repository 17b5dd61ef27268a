"""How right our idea of each cache is: cached tokens as predicted at the pick, against what the engine says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.scheduling.outcome import Outcome

_BUCKETS = (-16384, -4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096, 16384)
_SMOOTHING = 0.05


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


class Fidelity:
    """Compares prediction and report at the end of each request."""

    def __init__(self, pool: Pool, registry: CollectorRegistry) -> None:
        self._counts = {"equal": 0, "over": 0, "under": 0}
        self._predicted = 0
        self._reported = 0
        self._errors: dict[str, float] = {}
        self._requests = Counter(
            "epp_kv_predictions",
            "Requests whose engine reported cached tokens, by whether we had predicted as many.",
            ["result"],
            registry=registry,
        )
        self._error = Histogram(
            "epp_kv_prediction_error_tokens",
            "Cached tokens of a request: predicted minus reported.",
            buckets=_BUCKETS,
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
        endpoint = pick.decision.endpoint
        if outcome.served not in {None, endpoint.host_port}:
            return
        error = pick.decision.cached_tokens - usage.cached_tokens
        result = "equal" if error == 0 else "over" if error > 0 else "under"
        self._counts[result] += 1
        self._predicted += pick.decision.cached_tokens
        self._reported += usage.cached_tokens
        self._requests.labels(result).inc()
        self._error.observe(error)
        before = self._errors.get(endpoint.name, float(error))
        self._errors[endpoint.name] = before + _SMOOTHING * (error - before)

    def status(self) -> FidelityStatus:
        """The section of `/status`."""
        return FidelityStatus(
            compared=sum(self._counts.values()),
            predicted_tokens=self._predicted,
            reported_tokens=self._reported,
            mean_error={name: round(error, 1) for name, error in self._errors.items()},
            **self._counts,
        )

    def _forget(self, _column: int, endpoint: Endpoint) -> None:
        self._errors.pop(endpoint.name, None)
