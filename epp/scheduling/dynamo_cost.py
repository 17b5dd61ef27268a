"""Dynamo's block cost, for those who come from there with its variables."""

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoWeights:
    """The weights under Dynamo's names, without `DYN_ROUTER_`."""

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    temperature: float = 0.0


class DynamoCost:
    """cost = scale x max(0, blocks to prefill - credit x cached blocks) + decode blocks + weight x active requests."""

    name = "dynamo-cost"
    reads_prompts = True
    reads_load = True

    def __init__(self, draw: random.Random, weights: DynamoWeights, block_size: int) -> None:
        self._draw = draw
        self._weights = weights
        self._block = block_size

    def pick(self, request: Request, candidates: Candidates) -> Choice:  # noqa: ARG002 - the interface
        """The least cost, or by softmax over the span of the costs where a temperature is set."""
        costs = self._costs(candidates)
        return Choice(self._choose(costs), costs, "least block cost")

    def _costs(self, candidates: Candidates) -> NDArray[np.float64]:
        weights, block = self._weights, self._block
        own = math.ceil(candidates.prompt_tokens / block)
        active = candidates.prefill_tokens / block
        cached = candidates.cached_tokens // block
        # What is promised counts uncached tokens; the request itself counts whole and gets its credit back.
        prefill = np.maximum(active + candidates.prompt_tokens / block - self._credit(active, cached, own), 0.0)
        decode = np.ceil(candidates.decode_tokens / block) + own
        return np.asarray(
            weights.prefill_load_scale * prefill + decode + weights.decode_active_request_weight * candidates.in_flight
        )

    def _credit(self, active: NDArray[np.float64], cached: NDArray[np.int64], own: int) -> NDArray[np.float64]:
        decay = self._weights.overlap_score_credit_decay
        if not decay or not own:
            return np.asarray(self._weights.overlap_score_credit * cached)
        return np.asarray(self._weights.overlap_score_credit * cached / (1.0 + decay * (active - active.min()) / own))

    def _choose(self, costs: NDArray[np.float64]) -> int:
        span = float(np.ptp(costs))
        if self._weights.temperature <= 0.0 or span == 0.0:
            ties = (costs <= costs.min()).nonzero()[0]
            return int(ties[self._draw.randrange(len(ties))])
        shares = np.exp(-(costs - costs.min()) / span / self._weights.temperature).cumsum()
        return int(np.searchsorted(shares, self._draw.random() * shares[-1], side="right").clip(0, len(costs) - 1))
