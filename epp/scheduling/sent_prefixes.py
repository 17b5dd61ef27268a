"""What caches must hold, guessed from where prompts were sent: for engines without KV events."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.endpoints.endpoint import Incarnation
from epp.prompts.prompt import Prompt, Request
from epp.scheduling.candidates import Candidates

_BLOCK_TOKENS = 64
_MOST_BLOCKS = 2048


class SentPrefixes:
    """Which prompts were sent to which endpoint: a guess at what its cache holds."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._sent: dict[int, _Sent] = {}
        self._last: tuple[Prompt, list[int]] | None = None

    def shares(self, request: Request, candidates: Candidates) -> NDArray[np.float64] | None:
        """Share of the prompt's blocks that was sent to each candidate before; None for a prompt without blocks."""
        keys = self._keys(request.prompt)
        if not keys:
            return None
        return np.array([self._of(candidates, i).leading(keys) for i in range(len(candidates))]) / len(keys)

    def remember(self, request: Request, candidates: Candidates, position: int) -> None:
        """The prompt was sent to the candidate at `position`."""
        self._of(candidates, position).remember(self._keys(request.prompt))

    def _keys(self, prompt: Prompt) -> list[int]:
        if self._last is None or self._last[0] is not prompt:
            self._last = (prompt, _block_keys(prompt))
        return self._last[1]

    def _of(self, candidates: Candidates, position: int) -> "_Sent":
        column, incarnation = int(candidates.columns[position]), candidates.endpoints[position].incarnation
        sent = self._sent.get(column)
        if sent is None or sent.incarnation != incarnation:
            sent = self._sent[column] = _Sent(incarnation, self._capacity)
        return sent


class _Sent:
    """Keys of the blocks sent to one endpoint, least recently sent first."""

    def __init__(self, incarnation: Incarnation, capacity: int) -> None:
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
