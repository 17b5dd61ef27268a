"""The default policy: least predicted time to first token, with the work priced."""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice

_SMOOTHING = 0.02
_TIE_SECONDS = 0.001
_TIE_SHARE = 0.01
_EXPLORE_SECONDS = 1.0
"""What one exploring request may be predicted to lose."""
_EXPLORE_EVERY = 60.0
"""Seconds without a pick after which an endpoint is worth exploring."""

_FULL = 0.9
"""KV use above which an endpoint loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the policy adds to the predicted time of the request itself."""

    least: float = 0.4
    """Price of a second of prefill when nobody waits."""
    most: float = 4.0
    """Price of a second of prefill under the heaviest load."""
    in_flight: float = 0.01
    """Seconds for each request that is in flight at the endpoint."""
    context: float = 0.0001
    """Seconds for each 1,000 context tokens that decode at the endpoint."""
    exploration: float = 0.01
    """Share of requests that may go to an endpoint that was not picked for long."""


class PredictedTtft:
    """Least wait + (1 + price) x own prefill + pressure of what decodes there.

    Work put on an endpoint delays those who come to it later, so it costs more than the time of the request itself:
    the price is the mean number of requests that wait at an endpoint (arrivals per second and endpoint x the mean
    wait over all endpoints) plus a constant, within bounds.
    """

    name = "predicted-ttft"
    reads_prompts = True
    reads_load = True

    def __init__(self, draw: random.Random, prices: Prices | None = None) -> None:
        self._draw = draw
        self._prices = prices or Prices()
        self._last_arrival: float | None = None
        self._elsewhere = 0
        self._gap = 0.0
        self._wait = 0.0
        self._picked: NDArray[np.float64] = np.zeros(0)

    def pick(self, request: Request, candidates: Candidates) -> Choice:  # noqa: ARG002 - the interface
        """The cheapest endpoint; near-ties prefer cached tokens, then fewest in flight, then chance."""
        prices = self._prices
        costs = candidates.wait_seconds + (1.0 + self._price(len(candidates))) * candidates.work_seconds
        costs += prices.in_flight * candidates.in_flight + (prices.context / 1000.0) * candidates.decode_tokens
        full = candidates.kv_used > _FULL
        if np.logical_or.reduce(full):  # the methods of arrays take twice as long
            costs += np.where(full, _headroom_seconds(candidates), 0.0)
        best, reason = self._best(costs, candidates), "least predicted time to first token"
        if self._draw.random() < prices.exploration:
            best, reason = self._explore(costs, candidates, best, reason)
        self._learn(candidates, best)
        return Choice(best, costs, reason)

    def _price(self, endpoints: int) -> float:
        waiting = self._wait / (self._gap * endpoints) if self._gap > 0.0 else 0.0
        return min(self._prices.least + waiting, self._prices.most)

    def _best(self, costs: NDArray[np.float64], candidates: Candidates) -> int:
        least = float(costs[costs.argmin()])
        ties = (costs <= least + _TIE_SECONDS + _TIE_SHARE * abs(least)).nonzero()[0]
        if len(ties) == 1:
            return int(ties[0])
        cached = candidates.cached_tokens[ties]
        ties = ties[cached == np.maximum.reduce(cached)]
        in_flight = candidates.in_flight[ties]
        ties = ties[in_flight == np.minimum.reduce(in_flight)]
        return int(ties[self._draw.randrange(len(ties))])

    def _explore(self, costs: NDArray[np.float64], candidates: Candidates, best: int, reason: str) -> tuple[int, str]:
        """The endpoint that was not picked for longest, if trying it is cheap: what is believed of it may be wrong."""
        self._know(candidates)
        picked = self._picked[candidates.columns]
        oldest = int(picked.argmin())
        if candidates.now - picked[oldest] < _EXPLORE_EVERY or costs[oldest] - costs[best] > _EXPLORE_SECONDS:
            return best, reason
        return oldest, "not picked for long"

    def _learn(self, candidates: Candidates, best: int) -> None:
        # Work delays whoever comes later, to whichever replica.
        arrived = 1 + max(candidates.picks_elsewhere - self._elsewhere, 0)
        weight = _SMOOTHING if arrived == 1 else 1.0 - (1.0 - _SMOOTHING) ** arrived
        if self._last_arrival is not None:
            self._gap += weight * ((candidates.now - self._last_arrival) / arrived - self._gap)
        self._last_arrival, self._elsewhere = candidates.now, candidates.picks_elsewhere
        mean = float(np.add.reduce(candidates.wait_seconds)) / len(candidates)
        self._wait += weight * (mean - self._wait)
        self._know(candidates)
        self._picked[candidates.columns[best]] = candidates.now

    def _know(self, candidates: Candidates) -> None:
        missing = int(candidates.columns[-1]) + 1 - len(self._picked)
        if missing > 0:
            self._picked = np.append(self._picked, np.full(missing, candidates.now))


def _headroom_seconds(candidates: Candidates) -> NDArray[np.float64]:
    """Without free KV blocks an engine preempts requests and computes them again: a whole prompt is at stake."""
    share = np.minimum((candidates.kv_used - _FULL) / (1.0 - _FULL), 1.0)
    return np.asarray(share * (1.0 + float(candidates.work_seconds.max())))
