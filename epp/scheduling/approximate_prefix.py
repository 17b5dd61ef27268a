"""A policy without events: prefixes guessed from our own picks, and load."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.endpoints.endpoint import HostPort
from epp.prompts.prompt import Prompt, Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice

_BLOCK_TOKENS = 64
_MOST_BLOCKS = 2048
_CAPACITY_BLOCKS = 31_250
"""Blocks remembered per endpoint."""
_PREFIX_WEIGHT, _QUEUE_WEIGHT, _WORK_WEIGHT = 3.0, 2.0, 2.0


class ApproximatePrefix:
    """Weighted sum of three scores in 0..1: share of the prompt sent there before, fewest in flight, least prefill."""

    name = "approximate-prefix"

    def __init__(self, capacity_blocks: int = _CAPACITY_BLOCKS) -> None:
        self._capacity = capacity_blocks
        self._sent: dict[int, _Sent] = {}

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """The best score; the prompt then counts as cached there."""
        keys = _block_keys(request.prompt)
        held = np.array([self._of(candidates, i).leading(keys) for i in range(len(candidates))], dtype=np.float64)
        score = _PREFIX_WEIGHT * held / max(len(keys), 1)
        score += _QUEUE_WEIGHT * _less_is_better(candidates.in_flight)
        score += _WORK_WEIGHT * _less_is_better(candidates.prefill_tokens)
        best = int(score.argmax())
        self._of(candidates, best).remember(keys)
        return Choice(best, -score, "most of its prompt sent there before, least load")

    def _of(self, candidates: Candidates, position: int) -> "_Sent":
        column, incarnation = int(candidates.columns[position]), candidates.endpoints[position].incarnation
        sent = self._sent.get(column)
        if sent is None or sent.incarnation != incarnation:
            sent = self._sent[column] = _Sent(incarnation, self._capacity)
        return sent


class _Sent:
    """Keys of the blocks sent to one endpoint, least recently sent first."""

    def __init__(self, incarnation: tuple[str, str, int, HostPort], capacity: int) -> None:
        self.incarnation = incarnation
        self._capacity = capacity
        self._keys: OrderedDict[int, None] = OrderedDict()

    def leading(self, keys: Sequence[int]) -> int:
        """How many of the first `keys` are held."""
        for count, key in enumerate(keys):
            if key not in self._keys:
                return count
        return len(keys)

    def remember(self, keys: Sequence[int]) -> None:
        """Hold `keys`; the deepest blocks are the first to be forgotten."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._capacity:
            self._keys.popitem(last=False)


def _block_keys(prompt: Prompt) -> list[int]:
    keys, key = [], xxhash.xxh3_64_intdigest(prompt.namespace.encode())
    data = prompt.tokens.data.cast("B")
    size = _BLOCK_TOKENS * prompt.tokens.itemsize
    for start in range(0, min(len(data) - size + 1, _MOST_BLOCKS * size), size):
        key = xxhash.xxh3_64_intdigest(data[start : start + size], seed=key)
        keys.append(key)
    return keys


def _less_is_better(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 for the least, 0 for the most; 1 where all are equal."""
    least, most = int(values.min()), int(values.max())
    if least == most:
        return np.ones(len(values))
    return np.asarray((most - values) / (most - least))
