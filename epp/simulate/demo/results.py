"""What the runs came to: percentiles, cached share, and ratios with their confidence."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from epp.simulate.demo.client import Measured

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Predictions:
    """Requests by how the cached tokens that the picker predicted compare with those that the worker reported."""

    equal: int
    over: int
    """More was predicted than the worker had."""
    under: int
    predicted_tokens: int = 0
    """Cached tokens of all requests, as predicted."""
    reported_tokens: int = 0

    @property
    def right(self) -> float:
        """Share predicted exactly; 0 when nothing could be compared."""
        compared = self.equal + self.over + self.under
        return self.equal / compared if compared else 0.0


@dataclass(slots=True)
class Run:
    """One policy's results, growing while it runs."""

    policy: str
    label: str
    events: bool = False
    """Whether the picker follows the workers' KV events."""
    measured: list[Measured] = field(default_factory=list)
    predictions: Predictions | None = None
    """None: the policy does not look at caches."""
    late_seconds: float = 0.0
    """How late the client's timers fired, 95th percentile: what a busy machine adds to every time here."""

    @property
    def picks(self) -> list[int]:
        """Requests that each worker served, most first."""
        counts = Counter(measured.worker for measured in self.measured if measured.worker)
        return sorted(counts.values(), reverse=True)

    @property
    def errors(self) -> list[str]:
        """What was wrong, one text for each failed request."""
        return [measured.error for measured in self.measured if measured.error]

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that were cached."""
        prompt = sum(measured.prompt_tokens for measured in self.measured)
        return sum(measured.cached_tokens for measured in self.measured) / prompt if prompt else 0.0

    def ttft(self, percentile: float) -> float:
        """A percentile of seconds to the first token; 0 without any answer."""
        times = [measured.seconds_to_first_token for measured in self.measured if not measured.error]
        return float(np.percentile(times, percentile)) if times else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians and its 95 % interval."""

    value: float
    low: float
    high: float


def median_ratio(run: Run, baseline: Run, seed: int = 0) -> Ratio:
    """TTFT p50 of `run` over that of `baseline`.

    The interval is a bootstrap over conversations, the same ones in both runs: the turns of one conversation depend
    on each other, and the two runs served the same requests.
    """
    ours, theirs = _by_conversation(run), _by_conversation(baseline)
    shared = sorted(ours.keys() & theirs.keys())
    chance = np.random.default_rng(seed)
    ratios = []
    for _ in range(_RESAMPLES):
        drawn = chance.choice(shared, size=len(shared))
        ours_drawn = np.concatenate([ours[i] for i in drawn])
        ratios.append(np.median(ours_drawn) / np.median(np.concatenate([theirs[i] for i in drawn])))
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Ratio(run.ttft(50) / baseline.ttft(50), float(low), float(high))


def _by_conversation(run: Run) -> dict[int, NDArray[np.float64]]:
    times: dict[int, list[float]] = {}
    for measured in run.measured:
        if not measured.error:
            times.setdefault(measured.conversation, []).append(measured.seconds_to_first_token)
    return {id_: np.array(values) for id_, values in times.items()}
