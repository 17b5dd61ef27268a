"""Scorers of load and cache."""

import random

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.sent_prefixes import SentPrefixes

Scores = NDArray[np.float64]


def least_is_best(values: NDArray[np.float64] | NDArray[np.int64]) -> Scores:
    """1 for the least, 0 for the most, 1 for all where all are equal; the unknown (NaN) gets the mean of the known."""
    numbers = np.asarray(values, dtype=np.float64)
    unknown = np.isnan(numbers)
    if unknown.all():
        return np.ones(len(numbers))
    least, most = np.nanmin(numbers), np.nanmax(numbers)
    scores = np.ones(len(numbers)) if least == most else (most - numbers) / (most - least)
    if unknown.any():
        scores[unknown] = scores[~unknown].mean()
    return np.asarray(scores)


class Prefix:
    """Share of the prompt that the KV events say is cached there."""

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """Cached tokens over prompt tokens."""
        if not candidates.prompt_tokens:
            return None
        return np.asarray(candidates.cached_tokens / candidates.prompt_tokens)


class PredictedPrefix:
    """Share of the prompt that was sent there before, by our own memory: for engines without KV events."""

    def __init__(self, blocks_per_endpoint: int = 31_250) -> None:
        self._sent = SentPrefixes(blocks_per_endpoint)

    def score(self, request: Request, candidates: Candidates) -> Scores | None:
        """Remembered leading blocks over all blocks of the prompt."""
        return self._sent.shares(request, candidates)

    def picked(self, request: Request, candidates: Candidates, position: int) -> None:
        """The prompt will be cached there."""
        self._sent.remember(request, candidates, position)


class Queue:
    """Fewest requests that wait at the engine, as it says itself."""

    reads_prompts = False

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 for the shortest queue."""
        return least_is_best(candidates.queued)


class Running:
    """Fewest requests that the engine computes now, as it says itself."""

    reads_prompts = False

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 for the fewest."""
        return least_is_best(candidates.running)


class KvUse:
    """Most free KV cache, as the engine says itself."""

    reads_prompts = False

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 - use; the unknown gets the mean of the known."""
        if np.isnan(candidates.kv_used).all():
            return None
        return np.where(np.isnan(candidates.kv_used), np.nanmean(1.0 - candidates.kv_used), 1.0 - candidates.kv_used)


class LeastInFlight:
    """Fewest requests that we sent and that have not ended."""

    reads_prompts = False

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 for the fewest."""
        return least_is_best(candidates.in_flight)


class LeastTokens:
    """Fewest tokens that we sent: those to prefill and those that decode."""

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 for the fewest."""
        return least_is_best(candidates.prefill_tokens + candidates.decode_tokens)


class PredictedTime:
    """Least predicted time to first token."""

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 for the least."""
        return least_is_best(candidates.wait_seconds + candidates.work_seconds)


class SloHeadroom:
    """Predicted time to first token against a target: all that meet it are good, the tightest of them best.

    So requests that can wait leave the idle endpoints to those that cannot.
    """

    def __init__(self, ttft_seconds: float = 1.0, header: str = "x-slo-ttft-ms") -> None:
        self._target = ttft_seconds
        self._header = header.lower()

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """0.5 to 1 for those that meet the target, 0.5 to 0 for those that do not, by how much they miss it."""
        asked = candidates.header(self._header)
        target = float(asked) / 1000.0 if asked.isascii() and asked.isdigit() and int(asked) else self._target
        used = (candidates.wait_seconds + candidates.work_seconds) / target
        return np.where(used <= 1.0, 0.5 + used / 2.0, 0.5 / np.maximum(used, 1.0))


class Random:
    """Chance alone: spreads what other scorers find equal."""

    reads_prompts = False

    def __init__(self, seed: int | None = None) -> None:
        self._draw = random.Random(seed)  # noqa: S311 - no secret hangs on it

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """A number from 0 to 1 for each."""
        return np.array([self._draw.random() for _ in range(len(candidates))])
