"""The one interface that every policy implements."""

from dataclasses import dataclass
from typing import Protocol

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Choice:
    """Positions among the candidates, best first, and why the first one won."""

    order: tuple[int, ...]
    reason: str


class Policy(Protocol):
    """A pure choice over one snapshot; it never waits and never sees the network."""

    name: str

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """The order of preference; `candidates` is never empty and the order names at least one position."""
