"""The default policy: least predicted time to first token, with the work priced."""

import random

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice

_LEAST_PRICE, _MOST_PRICE = 0.5, 4.0
_SMOOTHING = 0.02
_TIE_SECONDS = 0.001
_TIE_SHARE = 0.01


class PredictedTtft:
    """Least wait + (1 + price) x own prefill.

    Work put on an endpoint delays those who come to it later, so it costs more than the time of the request itself:
    the price is the mean number of requests that wait at an endpoint (arrivals per second and endpoint x mean wait),
    plus a half, within bounds.
    """

    name = "predicted-ttft"

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._last_pick: float | None = None
        self._gap = 0.0
        self._wait = 0.0

    def pick(self, request: Request, candidates: Candidates) -> Choice:  # noqa: ARG002 - the interface
        """The cheapest endpoint; near-ties prefer cached tokens, then fewest in flight, then chance."""
        costs = candidates.wait_seconds + (1.0 + self._price(len(candidates))) * candidates.work_seconds
        best = _among_ties(costs, candidates, self._draw)
        self._learn(candidates, best)
        return Choice(best, costs, "least predicted time to first token")

    def _price(self, endpoints: int) -> float:
        waiting = self._wait / (self._gap * endpoints) if self._gap > 0.0 else 0.0
        return min(max(_LEAST_PRICE + waiting, _LEAST_PRICE), _MOST_PRICE)

    def _learn(self, candidates: Candidates, best: int) -> None:
        if self._last_pick is not None:
            self._gap += _SMOOTHING * (candidates.now - self._last_pick - self._gap)
        self._last_pick = candidates.now
        self._wait += _SMOOTHING * (float(candidates.wait_seconds[best]) - self._wait)


def _among_ties(costs: NDArray[np.float64], candidates: Candidates, draw: random.Random) -> int:
    least = float(costs.min())
    ties = np.nonzero(costs <= least + _TIE_SECONDS + _TIE_SHARE * least)[0]
    if len(ties) == 1:
        return int(ties[0])
    cached = candidates.cached_tokens[ties]
    ties = ties[cached == cached.max()]
    in_flight = candidates.in_flight[ties]
    ties = ties[in_flight == in_flight.min()]
    return int(ties[draw.randrange(len(ties))])
