"""The index of an EPP that follows no KV events."""

import numpy as np

from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt

_NOTHING = Match(cached_tokens=np.zeros(0, dtype=np.int64))


class NothingKnown:
    """Knows of no cached block, so that policies decide by load and by their own picks."""

    def match(self, prompt: Prompt) -> Match:  # noqa: ARG002 - the interface
        """Zero for every column."""
        return _NOTHING
