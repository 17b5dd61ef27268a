"""Prefill in steps, as vLLM schedules it: who waits gets blocks at the start of a step, as far as its tokens reach."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from epp.simulate.engine.cache import BlockCache, Sequence


@dataclass(slots=True, eq=False)
class _Prompt:
    sequence: Sequence
    answer_tokens: int
    transferred: bool
    done: asyncio.Future[float]
    """The loop time at which it was due."""
    cached: int = 0


class Prefill:
    """First come, first served, in steps of at most `step_tokens` uncached tokens; a long prompt takes several.

    What a prompt finds in the cache counts from when a step takes it in, not from when it came.
    """

    def __init__(
        self, cache: BlockCache, publish: Callable[[], None], *, tokens_per_second: float, step_tokens: int
    ) -> None:
        self._cache = cache
        self._publish = publish
        self._speed = tokens_per_second
        self._step_tokens = step_tokens
        self._waiting: deque[_Prompt] = deque()
        self._taken: list[_Prompt] = []
        self._busy = False

    @property
    def waiting(self) -> int:
        """Prompts that no step has taken in."""
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """Prompts that are being computed."""
        return len(self._taken)

    async def compute(self, sequence: Sequence, answer_tokens: int, *, transferred: bool) -> tuple[int, float]:
        """Give the prompt its turn; its cached tokens, and the loop time at which the last token was due."""
        loop = asyncio.get_running_loop()
        prompt = _Prompt(sequence, answer_tokens, transferred, loop.create_future())
        self._waiting.append(prompt)
        self.wake()
        try:
            due = await prompt.done
        finally:
            if prompt in self._waiting:
                self._waiting.remove(prompt)
        return prompt.cached, due

    def wake(self) -> None:
        """Somebody came, or blocks are free."""
        if not self._busy:
            self._step(asyncio.get_running_loop().time())

    def _step(self, start: float) -> None:
        batch = self._batch()
        self._busy = bool(batch)
        if batch:
            # Counted from when the step before was due, so that a late wake-up does not slow the worker down.
            due = start + sum(tokens for _, tokens in batch) / self._speed
            asyncio.get_running_loop().call_at(due, self._end, batch, due)

    def _batch(self) -> list[tuple[_Prompt, int]]:
        """Who is computed in the next step, and how many tokens of each."""
        batch, room = [], self._step_tokens
        self._taken = [prompt for prompt in self._taken if not prompt.done.done()]
        for prompt in self._taken:
            batch.append((prompt, self._schedule(prompt, room)))
            room -= batch[-1][1]
        while room and self._waiting and self._begin(self._waiting[0]):
            prompt = self._waiting.popleft()
            self._taken.append(prompt)
            batch.append((prompt, self._schedule(prompt, room)))
            room -= batch[-1][1]
        self._publish()
        return batch

    def _schedule(self, prompt: _Prompt, room: int) -> int:
        """Tokens of the prompt that the next step computes; their blocks can be hit from now on, as in vLLM, since
        whoever hits them is computed no earlier."""
        tokens = min(room, _left(prompt))
        self._cache.store(prompt.sequence, prompt.sequence.computed + tokens)
        return tokens

    def _begin(self, prompt: _Prompt) -> bool:
        cached = self._cache.begin(prompt.sequence, prompt.answer_tokens)
        if cached is None:
            return False
        prompt.cached = cached
        if prompt.transferred:
            prompt.cached = len(prompt.sequence.tokens) - 1
            prompt.sequence.computed = len(prompt.sequence.tokens)
        return True

    def _end(self, batch: list[tuple[_Prompt, int]], due: float) -> None:
        for prompt, _ in batch:
            if not prompt.done.done() and not _left(prompt):
                prompt.done.set_result(due)
        self._publish()
        self._step(due)


def _left(prompt: _Prompt) -> int:
    return len(prompt.sequence.tokens) - prompt.sequence.computed
