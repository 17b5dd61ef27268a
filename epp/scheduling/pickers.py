"""How one candidate is chosen by the sum of its scores."""

import random

import numpy as np
from numpy.typing import NDArray

from epp.scheduling.candidates import Candidates


class MaxScore:
    """The best score; of equal ones the fewest in flight, then chance."""

    def choose(self, scores: NDArray[np.float64], candidates: Candidates, draw: random.Random) -> int:
        """The position of the best."""
        ties = (scores >= scores.max() - 1e-9).nonzero()[0]
        if len(ties) > 1:
            in_flight = candidates.in_flight[ties]
            ties = ties[in_flight == in_flight.min()]
        return int(ties[draw.randrange(len(ties))])


class RandomPick:
    """Any candidate, whatever its score."""

    def choose(self, scores: NDArray[np.float64], candidates: Candidates, draw: random.Random) -> int:  # noqa: ARG002
        """Any position."""
        return draw.randrange(len(candidates))


class WeightedRandom:
    """By chance in proportion to the score; a candidate that scores 0 is taken only when all do."""

    def choose(self, scores: NDArray[np.float64], candidates: Candidates, draw: random.Random) -> int:
        """A position drawn in proportion to its score."""
        weights = np.maximum(scores, 0.0)
        total = float(weights.sum())
        if total <= 0.0:
            return draw.randrange(len(candidates))
        return int(np.searchsorted(np.cumsum(weights), draw.random() * total, side="right").clip(0, len(scores) - 1))


class Softmax:
    """By chance in proportion to exp(score / temperature): the lower the temperature, the more often the best."""

    def __init__(self, temperature: float = 0.1) -> None:
        if not temperature > 0.0:
            raise ValueError("temperature must be above 0")
        self._temperature = temperature

    def choose(self, scores: NDArray[np.float64], candidates: Candidates, draw: random.Random) -> int:
        """A position drawn by the softmax of the scores over their span."""
        span = float(np.ptp(scores)) or 1.0
        weights = np.exp((scores - scores.max()) / span / self._temperature)
        return WeightedRandom().choose(weights, candidates, draw)
