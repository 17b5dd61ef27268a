"""Each endpoint in turn."""

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice


class RoundRobin:
    """The baseline: ignores load and cache."""

    name = "round-robin"
    reads_prompts = False
    reads_load = False

    def __init__(self) -> None:
        self._turn = 0
        self._turns: NDArray[np.float64] = np.zeros(0)

    def pick(self, request: Request, candidates: Candidates) -> Choice:  # noqa: ARG002 - the interface
        """The next endpoint in turn; the others follow in turn."""
        count = len(candidates)
        first = self._turn % count
        self._turn += 1
        if len(self._turns) != 2 * count:
            self._turns = np.tile(np.arange(count, dtype=np.float64), 2)
        return Choice(first, self._turns[count - first : 2 * count - first], "its turn")
