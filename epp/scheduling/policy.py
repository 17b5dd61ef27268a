"""The one interface that every policy implements."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Choice:
    """The best position among the candidates, what each position would cost, and why the best one won."""

    best: int
    costs: NDArray[np.float64]
    """Less is better; fallbacks are named in this order. The unit is the policy's own."""
    reason: str


class Policy(Protocol):
    """A choice over one snapshot; it never waits, never sees the network and reads no clock."""

    @property
    def name(self) -> str:
        """What `EPP_POLICY` calls it."""

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """Choose among `candidates`, of which there is at least one; what it returns is what will be done."""
