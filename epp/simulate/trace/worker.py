"""The model of an engine: an LRU block cache, and prefills one after another."""

from collections import OrderedDict, deque

from epp.simulate.trace.requests import BLOCK_TOKENS, TraceRequest


class BlockCache:
    """Blocks in order of last use; of one prompt the deepest is evicted first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def hit_tokens(self, request: TraceRequest) -> int:
        """Leading tokens of the prompt that are held."""
        for count, block in enumerate(request.blocks):
            if block not in self._blocks:
                return count * BLOCK_TOKENS
        return request.input_tokens

    def use(self, request: TraceRequest) -> None:
        """Hold the blocks of the prompt, evicting the least recently used."""
        for block in reversed(request.blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


class Worker:
    """Computes the missed tokens of each prompt at a fixed rate, in order of arrival.

    A prompt's blocks count as held from its arrival, since whoever shares them queues behind it.
    """

    def __init__(self, *, cache_blocks: int, tokens_per_second: float) -> None:
        self.cache = BlockCache(cache_blocks)
        self._rate = tokens_per_second
        self._free_at = 0.0
        self._first_tokens: deque[float] = deque()

    def queued(self, now: float) -> int:
        """Prompts whose first token is still to come."""
        while self._first_tokens and self._first_tokens[0] <= now:
            self._first_tokens.popleft()
        return len(self._first_tokens)

    def wait_seconds(self, now: float) -> float:
        """Until the prefills that are here are done."""
        return max(0.0, self._free_at - now)

    def first_token_seconds(self, request: TraceRequest, now: float) -> float:
        """Time to first token if the request came now."""
        return self.wait_seconds(now) + (request.input_tokens - self.cache.hit_tokens(request)) / self._rate

    def take(self, request: TraceRequest, now: float) -> float:
        """Serve the request; the time of its first token."""
        self._free_at = now + self.first_token_seconds(request, now)
        self._first_tokens.append(self._free_at)
        self.cache.use(request)
        return self._free_at
