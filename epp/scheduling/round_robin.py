"""Each endpoint in turn."""

import numpy as np

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice


class RoundRobin:
    """The baseline: ignores load and cache."""

    name = "round-robin"
    reads_prompts = False

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, request: Request, candidates: Candidates) -> Choice:  # noqa: ARG002 - the interface
        """The next endpoint in turn; the others follow in turn."""
        first = self._turn % len(candidates)
        self._turn += 1
        turns = np.arange(len(candidates), dtype=np.float64)
        turns -= first
        turns[:first] += len(candidates)
        return Choice(first, turns, "its turn")
