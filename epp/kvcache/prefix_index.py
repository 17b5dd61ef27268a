"""The narrow interface of the KV-block index: who holds how much of a prompt's beginning."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Match:
    """How much of one prompt each column holds; arrays are indexed by pool column and may be shorter than the pool."""

    cached_tokens: NDArray[np.int64]
    """Leading tokens that the worker would not compute again, already capped as engines do: never the whole prompt."""


class PrefixIndex(Protocol):
    """What scheduling asks of the index."""

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column; zeros for a prompt without tokens."""
