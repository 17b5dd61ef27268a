"""How long each endpoint takes for a prefill, learnt from the first tokens of streamed answers."""

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint
from epp.scheduling.load import Prefill

_PRIOR = np.array([0.005, 0.1, 0.0])
"""Seconds per request, per 1,000 uncached tokens, and per 1,000 of them over each 1,000 of context, before any data."""
_FORGET = 0.998
"""What one more observation leaves of the weight of the earlier ones, for the pool's curve."""
_FLOOR_SECONDS = 0.02
"""Errors below this do not count in full: network and batching noise."""
_SPEED_STEP = 0.05
_SHRINK = 4.0
"""Observations that the pool's own speed counts for, beside those of one endpoint."""
_MOST_SURPRISE = float(np.log(2.0))
"""One observation moves an endpoint's speed as if it were at most this far off: outliers are bounded."""
_SAME_STEP = 0.2
"""A prefill that took less than this share of its prediction was computed together with the one before it."""


class Rates:
    """Prefill time = slowness of the endpoint x (a + b uncached + c uncached x mean context), in seconds.

    The curve (a, b, c) is the pool's, by weighted recursive least squares with forgetting; the slowness is one number
    per endpoint, 1 for the pool's mean. So an endpoint that was seen a few times is already placed, and a new one
    starts as an average one.
    """

    def __init__(self) -> None:
        self._curve = _PRIOR.copy()
        self._precision = np.diag(1.0 / np.maximum(_PRIOR, 0.01) ** 2) * 0.1
        self._moment = self._precision @ self._curve
        self._slowness: NDArray[np.float64] = np.ones(0)
        self._seen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._held: dict[int, tuple[NDArray[np.float64], float]] = {}

    def join(self, column: int, _endpoint: Endpoint) -> None:
        """A new endpoint starts at the pool's mean speed."""
        missing = column + 1 - len(self._slowness)
        if missing > 0:
            self._slowness = np.append(self._slowness, np.ones(missing))
            self._seen = np.append(self._seen, np.zeros(missing, dtype=np.int64))
        self._slowness[column], self._seen[column] = 1.0, 0
        self._held.pop(column, None)

    def seconds(
        self, columns: NDArray[np.intp], uncached: NDArray[np.int64], prompt_tokens: int
    ) -> NDArray[np.float64]:
        """Predicted prefill time of a prompt on each column, given how many of its tokens are not cached there."""
        a, b, c = self._curve
        thousands = uncached / 1000.0
        context = prompt_tokens / 1000.0 - thousands / 2
        return np.asarray(self._slowness[columns] * (a + thousands * (b + c * context)))

    def observe(self, seen: Prefill) -> None:
        """Learn from one prefill; those that ended together count as one."""
        features = _features(seen)
        predicted = float(self._slowness[seen.column] * (features @ self._curve))
        held = self._held.get(seen.column)
        if held is not None and seen.seconds < _SAME_STEP * predicted:
            self._held[seen.column] = (held[0] + features, held[1] + seen.seconds)
            return
        if held is not None:
            self._learn(seen.column, *held)
        self._held[seen.column] = (features, seen.seconds)

    def _learn(self, column: int, features: NDArray[np.float64], seconds: float) -> None:
        shape = float(features @ self._curve)
        surprise = np.log((seconds + _FLOOR_SECONDS) / (self._slowness[column] * shape + _FLOOR_SECONDS))
        surprise = float(np.clip(surprise, -_MOST_SURPRISE, _MOST_SURPRISE))
        self._seen[column] += 1
        step = max(_SPEED_STEP, 1.0 / (float(self._seen[column]) + _SHRINK))
        # Where every endpoint surprises the same way the curve is wrong, not the endpoints: it learns first.
        bounded = (self._slowness[column] * shape + _FLOOR_SECONDS) * np.exp(surprise) - _FLOOR_SECONDS
        self._fit(features, bounded / self._slowness[column])
        self._slowness[column] *= np.exp(step * surprise)
        self._center()

    def _fit(self, features: NDArray[np.float64], seconds: float) -> None:
        weight = 1.0 / (float(features @ self._curve) + _FLOOR_SECONDS) ** 2
        self._precision = _FORGET * self._precision + weight * np.outer(features, features)
        self._moment = _FORGET * self._moment + weight * seconds * features
        self._curve = _solve_positive(self._precision, self._moment)

    def _center(self) -> None:
        """Keep the mean of the seen endpoints' log slowness at 0, so that the curve is the pool's."""
        seen = self._seen > 0
        mean = float(np.exp(np.log(self._slowness[seen]).mean()))
        self._slowness[seen] /= mean


def _features(seen: Prefill) -> NDArray[np.float64]:
    thousands = seen.prefill_tokens / 1000.0
    return np.array([1.0, thousands, thousands * (seen.context_tokens / 1000.0 - thousands / 2)])


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
