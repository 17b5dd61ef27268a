"""What our picks would have been worth beside somebody else's: predicted gain, and how far to trust predictions.

Each request is compared alone: the load and the caches are those that the other picker made, so a gain that would come
from better caches over time is not in it, and picks that are good for later requests look like losses.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as MetricCounter

from epp.scheduling.outcome import Outcome
from epp.scheduling.scheduler import Look

_WINDOW = 10_000
"""Newest requests that the report is about: earlier predictions came from rates that were learnt less well."""
_SECONDS = (-10, -3, -1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Predicted against observed time to first token, where the request was served and its first token was seen."""

    requests: int
    observed_mean: float
    """Seconds from the end of the request to its first token."""
    bias: float
    """Mean of observed less predicted seconds."""
    error_p50: float
    """Half of the predictions are off by less than this, in seconds."""
    error_p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """Seconds are predicted ones, of the newest requests."""

    compared: int = 0
    """Requests since the start that somebody else sent to an endpoint of the pool."""
    same: int = 0
    """Of those: we would have sent them there too."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Requests that could not be compared, by reason."""
    served_ttft: float = 0.0
    """Mean predicted time to first token where requests were sent."""
    our_ttft: float = 0.0
    """The same where we would have sent them."""
    gain: float = 0.0
    """Mean of the first less the second."""
    gain_error: float = 0.0
    """Standard error of that mean."""
    served_cached_tokens: float = 0.0
    """Mean tokens of a prompt that we think were cached where it was sent."""
    our_cached_tokens: float = 0.0
    reported_cached_tokens: float | None = None
    """Mean of what the engines reported, where they do."""
    calibration: Calibration | None = None
    """None: no first token was seen, so nothing says how good the predictions are."""

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if not self.compared:
            return "nothing was compared yet"
        if self.calibration is None:
            return "no first token was seen: the predictions are not calibrated, trust none of them"
        doubt = 2.0 * self.gain_error + abs(self.calibration.bias)
        if abs(self.gain) <= doubt:
            return f"no difference beyond doubt: the gain is within {doubt:.3f} s of nothing"
        if self.gain < 0:
            return "requests are served sooner where they are sent now"
        return "requests would be served sooner, by more than the predictions are off on average"


class _Row(NamedTuple):
    served_ttft: float
    our_ttft: float
    observed_ttft: float
    served_cached: float
    our_cached: float
    reported_cached: float
    """NaN: not known, as for `observed_ttft`."""


class Comparison:
    """Takes in one request after another."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._compared = 0
        self._same = 0
        self._left_out: Counter[str] = Counter()
        self._rows: deque[_Row] = deque(maxlen=_WINDOW)
        self._requests = MetricCounter(
            "epp_comparison_requests",
            "Requests that another picker placed, by whether we would have chosen the same, or why it is not known.",
            ["result"],
            registry=registry,
        )
        self._gain = Histogram(
            "epp_comparison_gain_seconds",
            "Predicted time to first token where a request was sent, less that where we would have sent it.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._error = Histogram(
            "epp_comparison_error_seconds",
            "Observed time to first token less the predicted one, where the request was sent.",
            buckets=_SECONDS,
            registry=registry,
        )

    def leave_out(self, reason: str) -> None:
        """One request that cannot be compared."""
        self._left_out[reason] += 1
        self._requests.labels(reason).inc()

    def compare(self, look: Look, outcome: Outcome) -> None:
        """One request whose endpoint is known: `outcome.pick` is where it was served."""
        assert outcome.pick is not None
        served, ours = outcome.pick.decision, look.choice.best
        our_ttft = float(look.candidates.wait_seconds[ours] + look.candidates.work_seconds[ours])
        same = look.candidates.endpoints[ours].host_port == served.endpoint.host_port
        observed = outcome.time_to_first_token
        reported = None if outcome.usage is None else outcome.usage.cached_tokens
        self._compared += 1
        self._same += same
        self._requests.labels("same" if same else "different").inc()
        self._gain.observe(served.predicted_ttft - our_ttft)
        if observed is not None:
            self._error.observe(observed - served.predicted_ttft)
        self._rows.append(
            _Row(
                served.predicted_ttft,
                our_ttft,
                np.nan if observed is None else observed,
                served.cached_tokens,
                float(look.candidates.cached_tokens[ours]),
                np.nan if reported is None else reported,
            )
        )

    def report(self) -> ComparisonReport:
        """What is known so far."""
        if not self._rows:
            return ComparisonReport(left_out=dict(self._left_out))
        served, ours, _, served_cached, our_cached, reported = np.array(self._rows, dtype=np.float64).T
        known = reported[~np.isnan(reported)]
        return ComparisonReport(
            compared=self._compared,
            same=self._same,
            left_out=dict(self._left_out),
            served_ttft=float(served.mean()),
            our_ttft=float(ours.mean()),
            gain=float((served - ours).mean()),
            gain_error=float((served - ours).std() / np.sqrt(len(served))),
            served_cached_tokens=float(served_cached.mean()),
            our_cached_tokens=float(our_cached.mean()),
            reported_cached_tokens=float(known.mean()) if len(known) else None,
            calibration=self._calibration(),
        )

    def _calibration(self) -> Calibration | None:
        pairs = np.array([(row.observed_ttft, row.served_ttft) for row in self._rows], dtype=np.float64)
        pairs = pairs[~np.isnan(pairs[:, 0])]
        if not len(pairs):
            return None
        errors = pairs[:, 0] - pairs[:, 1]
        p50, p90 = np.percentile(np.abs(errors), (50, 90)).tolist()
        return Calibration(
            requests=len(pairs),
            observed_mean=float(pairs[:, 0].mean()),
            bias=float(errors.mean()),
            error_p50=p50,
            error_p90=p90,
        )
