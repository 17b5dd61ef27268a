"""How long each endpoint takes for a prefill, learnt from the first tokens of streamed answers."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint
from epp.scheduling.load import Prefill

_PRIOR = (0.005, 0.1, 0.0)
"""Seconds per request, per 1,000 uncached tokens, and per 1,000 of them over each 1,000 of context, before any data."""
_BATCH = 16
"""Observations between two fits of the curve."""
_FIRST_FITS = (2, 4, 8)
"""Observations after which the curve is fitted sooner: before any data it may be off by an order of magnitude."""
_FORGET = 0.97
"""What one more batch leaves of the weight of the earlier ones."""
_FLOOR_SECONDS = 0.02
"""Errors below this do not count in full: network and batching noise."""
_SPEED_STEP = 0.05
_SHRINK = 4.0
"""Observations that the pool's own speed counts for, beside those of one endpoint."""
_MOST_SURPRISE = math.log(2.0)
"""One observation counts as if it were at most this far off: outliers are bounded."""
_MOST_ERROR = math.log(4.0)
"""And moves the error that all have in common as if that were at most this far off."""
_MOST_DRIFT = 0.3
"""Error in common above which the curve is scaled as it is, before its shape is fitted."""
_SAME_STEP = 0.2
"""A prefill that took less than this share of its prediction,"""
_SAME_STEP_SECONDS = 0.02
"""and less than this after the one before it, was computed together with that one."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """One prefill, or several that ended together: sums of the terms that the curve weighs."""

    requests: float
    thousands: float
    products: float
    seconds: float

    def plus(self, other: "_Sample") -> "_Sample":
        return _Sample(
            self.requests + other.requests,
            self.thousands + other.thousands,
            self.products + other.products,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class LearntRates:
    """All that was learnt, for another process."""

    curve: tuple[float, float, float]
    precision: tuple[float, ...]
    """Nine numbers, row by row."""
    moment: tuple[float, float, float]
    speeds: dict[int, tuple[float, int]]
    """By column: slowness, and from how many observations; only of those that were observed."""


class Rates:
    """Prefill time = slowness of the endpoint x (a + b uncached + c uncached x mean context), in seconds.

    The curve (a, b, c) is the pool's, by weighted least squares with forgetting; the slowness is one number per
    endpoint, 1 for the pool's mean. So an endpoint that was seen a few times is already placed, and a new one starts
    as an average one.
    """

    def __init__(self) -> None:
        self._curve = _PRIOR
        self._common = 0.0
        """Log of how much longer prefills of late took than predicted, on all endpoints alike."""
        self._observed = 0
        weights = np.array([1.0 / max(term, 0.01) ** 2 for term in _PRIOR]) / 10.0
        self._precision = np.diag(weights)
        self._moment = weights * np.array(_PRIOR)
        self._slowness: NDArray[np.float64] = np.ones(0)
        self._seen: list[int] = []
        self._held: dict[int, _Sample] = {}
        self._batch: list[tuple[float, float, float, float]] = []

    def join(self, column: int, _endpoint: Endpoint) -> None:
        """A new endpoint starts at the pool's mean speed."""
        missing = column + 1 - len(self._slowness)
        if missing > 0:
            self._slowness = np.append(self._slowness, np.ones(missing))
            self._seen.extend([0] * missing)
        self._slowness[column], self._seen[column] = 1.0, 0
        self._held.pop(column, None)

    def assume(self, column: int, slowness: float) -> None:
        """Believe that the endpoint is so many times slower than the pool's mean, until it shows otherwise."""
        self._slowness[column] = slowness

    def seconds(
        self, columns: NDArray[np.intp], uncached: NDArray[np.int64] | int, prompt_tokens: int
    ) -> NDArray[np.float64]:
        """Predicted prefill time of a prompt on each column, given how many of its tokens are not cached there.

        One number stands for all columns alike.
        """
        a, b, c = self._curve
        thousands = uncached * 0.001
        slowness = self._slowness.take(columns)
        if not c:
            return slowness * (a + b * thousands)
        # Mean context of the computed tokens: what is cached and half of what is not.
        return slowness * (a + thousands * (b + c * (prompt_tokens * 0.001 - thousands * 0.5)))

    def learnt(self) -> LearntRates:
        """What was learnt so far."""
        speeds = {i: (float(self._slowness[i]), seen) for i, seen in enumerate(self._seen) if seen}
        first, second, third = self._moment.tolist()
        return LearntRates(self._curve, tuple(self._precision.ravel().tolist()), (first, second, third), speeds)

    def take(self, learnt: LearntRates) -> None:
        """Begin with what another process learnt; numbers that no process can have learnt change nothing."""
        precision = np.array(learnt.precision).reshape(3, 3)
        numbers = [*learnt.curve, *learnt.precision, *learnt.moment]
        usable = np.isfinite(numbers).all() and min(learnt.curve) >= 0.0 and max(learnt.curve) > 0.0
        if not usable or np.linalg.eigvalsh(precision).min() <= 0.0:
            return
        self._curve, self._precision, self._moment = learnt.curve, precision, np.array(learnt.moment)
        for column, (slowness, seen) in learnt.speeds.items():
            if column < len(self._seen) and 0.01 <= slowness <= 100.0 and seen > 0:
                self._slowness[column], self._seen[column] = slowness, seen
        self._observed = max(self._observed, sum(self._seen))

    def observe(self, seen: Prefill) -> None:
        """Learn from one prefill; those that ended together count as one."""
        thousands = seen.prefill_tokens / 1000.0
        sample = _Sample(1.0, thousands, thousands * (seen.context_tokens / 1000.0 - thousands / 2), seen.seconds)
        held = self._held.get(seen.column)
        expected = float(self._slowness[seen.column]) * self._shape(sample)
        if held is not None and sample.seconds < min(_SAME_STEP * expected, _SAME_STEP_SECONDS):
            self._held[seen.column] = held.plus(sample)
            return
        if held is not None:
            self._learn(seen.column, held)
        self._held[seen.column] = sample

    def _shape(self, sample: _Sample) -> float:
        a, b, c = self._curve
        return a * sample.requests + b * sample.thousands + c * sample.products

    def _learn(self, column: int, sample: _Sample) -> None:
        slowness = float(self._slowness[column])
        expected = slowness * self._shape(sample) + _FLOOR_SECONDS
        error = math.log((sample.seconds + _FLOOR_SECONDS) / expected)
        # What all endpoints have in common is the curve's error and says nothing about this one.
        surprise = _bounded(error - self._common, _MOST_SURPRISE)
        self._common += max(_SPEED_STEP, 1.0 / (self._observed + 1)) * _bounded(error - self._common, _MOST_ERROR)
        self._observed += 1
        self._seen[column] += 1
        step = max(_SPEED_STEP, 1.0 / (self._seen[column] + _SHRINK))
        self._slowness[column] = slowness * math.exp(step * surprise)
        likely = (expected * math.exp(self._common + surprise) - _FLOOR_SECONDS) / slowness
        self._batch.append((sample.requests, sample.thousands, sample.products, likely))
        if len(self._batch) >= _BATCH or self._observed in _FIRST_FITS:
            self._fit(np.array(self._batch))
            self._batch.clear()

    def _rescale(self, factor: float) -> None:
        """All prefills take `factor` times as long as believed; what is known of the curve's shape stays."""
        a, b, c = self._curve
        self._curve = (factor * a, factor * b, factor * c)
        self._precision /= factor**2
        self._moment /= factor
        self._common = 0.0

    def _fit(self, batch: NDArray[np.float64]) -> None:
        """Refit the curve; then the mean of the seen endpoints' log slowness is 0 again, so that it is the pool's."""
        terms, seconds = batch[:, :3], batch[:, 3]
        if abs(self._common) > _MOST_DRIFT:
            self._rescale(math.exp(self._common))
        before = terms @ np.array(self._curve) + _FLOOR_SECONDS
        weights = 1.0 / before**2
        self._precision = _FORGET * self._precision + (terms.T * weights) @ terms
        self._moment = _FORGET * self._moment + (terms.T * weights) @ seconds
        a, b, c = _solve_positive(self._precision, self._moment).tolist()
        self._curve = (a, b, c)
        self._common -= float(np.log((terms @ np.array(self._curve) + _FLOOR_SECONDS) / before).mean())
        seen = np.array(self._seen) > 0
        self._slowness[seen] /= np.exp(np.log(self._slowness[seen]).mean())


def _bounded(value: float, most: float) -> float:
    return min(max(value, -most), most)


def _solve_positive(precision: NDArray[np.float64], moment: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative terms: a term that would be negative is left out."""
    kept = [0, 1, 2]
    while True:
        solution = np.zeros(3)
        solution[kept] = np.linalg.solve(precision[np.ix_(kept, kept)], moment[kept])
        negative = [i for i in kept if solution[i] < 0.0]
        if not negative:
            return solution
        kept = [i for i in kept if i not in negative]
