"""The worker's clock: who waits, how long prefill takes, when each token comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from epp.simulate.engine.cache import BlockCache, Sequence
from epp.simulate.engine.events import Publisher
from epp.simulate.engine.prefill import Prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How big and how fast the simulated worker is."""

    model: str = "simulated"
    loras: tuple[str, ...] = ()
    blocks: int = 4096
    block_size: int = 16
    prefill_tokens_per_second: float = 8000.0
    step_tokens: int = 2048
    """Uncached tokens that are computed together, as vLLM's `max_num_batched_tokens` bounds them."""
    inter_token_seconds: float = 0.02
    stream_interval: int = 1
    """Tokens per streamed chunk."""
    rank: int = 0

    @property
    def max_tokens(self) -> int:
        """The longest sequence that fits."""
        return self.blocks * self.block_size


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0


class Engine:
    """Prefill goes in steps, first come, first served; decoding sequences run beside it at a fixed pace."""

    def __init__(self, config: EngineConfig, cache: BlockCache, publisher: Publisher) -> None:
        self.config = config
        self.cache = cache
        self.totals = Totals()
        self._decoding = 0
        self._publisher = publisher
        self._prefill = Prefill(
            cache, self.publish, tokens_per_second=config.prefill_tokens_per_second, step_tokens=config.step_tokens
        )

    @property
    def waiting(self) -> int:
        """Requests that have no blocks yet."""
        return self._prefill.waiting

    @property
    def running(self) -> int:
        """Requests that are computed."""
        return self._prefill.taken + self._decoding

    @contextlib.asynccontextmanager
    async def run(self, sequence: Sequence, answer: list[int], *, transferred: bool = False) -> AsyncIterator["Run"]:
        """Enters when prefill is done, so that the first token of `answer` exists; leaving frees the blocks.

        `transferred`: another worker computed the prompt and its KV is here, so there is nothing to prefill.
        """
        try:
            cached, ready = await self._prefill.compute(sequence, len(answer), transferred=transferred)
            self.totals.prompt_tokens += len(sequence.tokens)
            self.totals.cached_tokens += cached
            self._decoding += 1
            try:
                run = Run(self, sequence, answer, cached, ready)
                yield run
                self.totals.finished += 1
            finally:
                self._decoding -= 1
        except BaseException:
            self.totals.aborted += 1
            raise
        finally:
            self.cache.end(sequence)
            self._prefill.wake()

    def reset(self) -> bool:
        """Forget the cache; refused while requests run."""
        cleared = self.cache.clear()
        self.publish()
        return cleared

    def publish(self) -> None:
        """Tell subscribers what the cache did."""
        self._publisher.publish(self.cache.events)


class Run:
    """One decoding sequence."""

    def __init__(self, engine: Engine, sequence: Sequence, answer: list[int], cached: int, ready: float) -> None:
        self.cached_tokens = cached
        self.prompt_tokens = len(sequence.tokens)
        self._engine = engine
        self._sequence = sequence
        self._answer = answer
        self._ready = ready

    async def tokens(self) -> AsyncIterator[tuple[int, int]]:
        """Ranges of the answer's tokens, each when its last one is due."""
        loop = asyncio.get_running_loop()
        config = self._engine.config
        start = 0
        while start < len(self._answer):
            # The first token comes alone: it ends the wait that clients feel.
            end = min(len(self._answer), start + (config.stream_interval if start else 1))
            await asyncio.sleep(self._ready + (end - 1) * config.inter_token_seconds - loop.time())
            self._grow(start, end)
            yield start, end
            start = end

    def _grow(self, start: int, end: int) -> None:
        self._sequence.tokens.extend(self._answer[start:end])
        # The newest token has no KV until the step that follows it.
        self._engine.cache.store(self._sequence, len(self._sequence.tokens) - 1)
        self._engine.publish()
        self._engine.totals.generation_tokens += end - start
