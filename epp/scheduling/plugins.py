"""The interfaces that rules implement, ours and those in other people's packages.

A rule sees one request and the candidates as NumPy columns, and answers with one column. It never waits, never sees the
network, reads no clock (`candidates.now` is the time) and leaves the columns as they are. A filter or scorer with an
attribute `reads_prompts = False` says that prompts do not matter to it: where none of a policy's rules needs them,
prompts are not turned into tokens.
"""

import random
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates


class Filter(Protocol):
    """Says who may be picked at all."""

    def keep(self, request: Request, candidates: Candidates) -> NDArray[np.bool_] | None:
        """True for those that may be picked; None: no opinion on this request."""


class Scorer(Protocol):
    """Says how good each candidate is."""

    def score(self, request: Request, candidates: Candidates) -> NDArray[np.float64] | None:
        """From 0 (worst) to 1 (best), clipped to that; None: no opinion on this request."""


class Picker(Protocol):
    """Chooses by the weighted sum of the scores."""

    def choose(self, scores: NDArray[np.float64], candidates: Candidates, draw: random.Random) -> int:
        """The position of the choice; `draw` is the only source of chance."""


@runtime_checkable
class HearsPick(Protocol):
    """A filter or scorer that remembers where requests went."""

    def picked(self, request: Request, candidates: Candidates, position: int) -> None:
        """The candidate at `position` was chosen."""
