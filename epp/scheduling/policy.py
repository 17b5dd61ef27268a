"""The one interface that every policy implements."""

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates


class Choice(msgspec.Struct, frozen=True):
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

    @property
    def reads_prompts(self) -> bool:
        """Whether the choice depends on prompts: else they are neither turned into tokens nor looked up in caches."""

    @property
    def reads_load(self) -> bool:
        """Whether the choice depends on load or engine metrics: else those columns are left out of the candidates."""

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """Choose among `candidates`, of which there is at least one; what it returns is what will be done."""
