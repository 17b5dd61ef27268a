"""What one picker knows of the workers' caches."""

from collections.abc import Callable

import numpy as np

from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt
from epp.simulate.trace.requests import BLOCK_TOKENS, TraceRequest
from epp.simulate.trace.worker import BlockCache


class View:
    """An index of the caches that hears of each prompt by `use`, sooner or later."""

    def __init__(self, workers: int, cache_blocks: int) -> None:
        self._caches = [BlockCache(cache_blocks) for _ in range(workers)]

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per worker, as far as heard."""
        blocks = tuple(prompt.tokens[::BLOCK_TOKENS].tolist())
        known = TraceRequest(0.0, len(prompt.tokens), 0, blocks)
        held = [cache.hit_tokens(known) for cache in self._caches]
        return Match(np.minimum(np.array(held, dtype=np.int64), max(len(prompt.tokens) - 1, 0)))

    def use(self, worker: int, request: TraceRequest) -> None:
        """`worker` has the prompt in its cache."""
        self._caches[worker].use(request)

    def later(self, worker: int, request: TraceRequest) -> Callable[[], None]:
        """What to call when the picker hears of it."""
        return lambda: self.use(worker, request)
