"""Each endpoint in turn."""

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice


class RoundRobin:
    """The baseline: ignores load and cache."""

    name = "round-robin"

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, request: Request, candidates: Candidates) -> Choice:  # noqa: ARG002 - the interface
        """The next endpoint in turn; the others follow in turn."""
        first = self._turn % len(candidates)
        self._turn += 1
        order = tuple((first + i) % len(candidates) for i in range(len(candidates)))
        return Choice(order, "its turn")
