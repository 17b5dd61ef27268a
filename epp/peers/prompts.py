"""Prompts that replicas sent to workers lately: equal ones find them there before any event has named them.

A prompt goes by the prefix keys of its first tokens, one for each `STEP_TOKENS`, so a few hundred bytes tell it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.keys import Keys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.prefix_index import Match, PrefixIndex
from epp.peers.wire import MOST_PROMPTS, SentPrompt, endpoint_key
from epp.prompts.prompt import Prompt
from epp.settings import Settings

STEP_TOKENS = 512
MOST_KEYS = 256
"""Of one prompt: what is behind its first 131,072 tokens is not told."""
_MOST_WAITING = 1024
"""Prompts that wait to be told; with more the oldest are left out."""

Sketch = Callable[[Prompt, int], Keys]
"""Prefix keys of a prompt after each so many tokens."""


@dataclass(slots=True)
class PromptCounts:
    """What happened to prompts of others."""

    told: int = 0
    foreign: int = 0
    """With prefix keys of another secret than ours, which say nothing here."""
    crowded_out: int = 0
    """Keys given up for newer ones."""


class OwnPrompts:
    """Prompts of our picks that peers are still to be told."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch
        self._waiting: deque[SentPrompt] = deque(maxlen=_MOST_WAITING)

    def __len__(self) -> int:
        return len(self._waiting)

    def picked(self, endpoint: int, prompt: Prompt) -> bool:
        """A pick sent `prompt` to the endpoint of that key; False where there is nothing to tell of it."""
        if not endpoint or len(prompt.tokens) < STEP_TOKENS:
            return False
        self._waiting.append(SentPrompt(endpoint, self._sketch(prompt, STEP_TOKENS)[:MOST_KEYS].tobytes()))
        return True

    def take(self) -> tuple[SentPrompt, ...]:
        """The next ones to tell."""
        return tuple(self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_PROMPTS)))


class SentElsewhere:
    """What `index` says, and what others sent to the workers on top of it.

    An entry lasts `seconds(column)`: until events of the worker must have named its blocks.
    """

    def __init__(
        self,
        index: PrefixIndex,
        sketch: Sketch,
        seconds: Callable[[int], float],
        clock: Callable[[], float],
        *,
        most_keys: int = 200_000,
    ) -> None:
        self._index = index
        self._sketch = sketch
        self._seconds = seconds
        self._clock = clock
        self._most = most_keys
        self._columns: dict[int, int] = {}
        self._held: dict[int, dict[int, float]] = {}
        """By prefix key: the endpoints that hold it, by key, and until when."""
        self._due: dict[float, deque[tuple[float, int, Sequence[int]]]] = {}
        """By how long they last: the oldest first."""
        self.size = 0
        """Keys of all entries that are not over."""
        self.counts = PromptCounts()

    def join(self, column: int, endpoint: Endpoint) -> None:
        """The endpoint has `column`."""
        self._columns[endpoint_key(endpoint)] = column

    def leave(self, _column: int, endpoint: Endpoint) -> None:
        """The endpoint is gone: what was sent to it counts no more."""
        self._columns.pop(endpoint_key(endpoint), None)

    def match(self, prompt: Prompt) -> Match:
        """Leading cached tokens per column."""
        match = self._index.match(prompt)
        if not self._held or len(prompt.tokens) < STEP_TOKENS:
            return match
        self._expire(self._clock())
        found: dict[int, int] = {}
        for steps, key in enumerate(self._sketch(prompt, STEP_TOKENS)[:MOST_KEYS].tolist(), 1):
            holders = self._held.get(key)
            if holders is None:
                break
            found.update(dict.fromkeys(holders, steps))
        return self._with(match, found, len(prompt.tokens) - 1) if found else match

    def heard(self, prompts: Sequence[SentPrompt]) -> None:
        """Another replica sent these."""
        now = self._clock()
        self._expire(now)
        for each in prompts:
            column = self._columns.get(each.endpoint)
            if column is not None:
                self.counts.told += 1
                keys = np.frombuffer(each.keys[: len(each.keys) & ~7], dtype=np.uint64)[:MOST_KEYS].tolist()
                self._hold(each.endpoint, keys, now, self._seconds(column))

    def _with(self, match: Match, found: dict[int, int], most: int) -> Match:
        at = [(column, steps) for key, steps in found.items() if (column := self._columns.get(key)) is not None]
        if not at:
            return match
        width = max(len(match.cached_tokens), max(column for column, _ in at) + 1)
        cached = np.zeros(width, dtype=np.int64)
        cached[: len(match.cached_tokens)] = match.cached_tokens
        for column, steps in at:
            cached[column] = max(int(cached[column]), min(steps * STEP_TOKENS, most))
        return Match(cached)

    def _hold(self, endpoint: int, keys: Sequence[int], now: float, seconds: float) -> None:
        until = now + seconds
        for key in keys:
            self._held.setdefault(key, {})[endpoint] = until
        self._due.setdefault(seconds, deque()).append((until, endpoint, keys))
        self.size += len(keys)
        while self.size > self._most:
            line = min((line for line in self._due.values() if line), key=lambda line: line[0][0])
            self.counts.crowded_out += len(line[0][2])
            self._end_first(line)

    def _expire(self, now: float) -> None:
        for line in self._due.values():
            while line and line[0][0] <= now:
                self._end_first(line)

    def _end_first(self, line: deque[tuple[float, int, Sequence[int]]]) -> None:
        until, endpoint, keys = line.popleft()
        self.size -= len(keys)
        for key in keys:
            holders = self._held.get(key, {})
            if holders.get(endpoint, np.inf) <= until:
                del holders[endpoint]
                if not holders:
                    del self._held[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExchange:
    """Prompts on their way: ours to be told, theirs to be heard."""

    own: OwnPrompts
    others: SentElsewhere
    secret_id: Callable[[], bytes]
    """Names the secret of the prefix keys that are in use here now."""

    @classmethod
    def of(cls, knowledge: KvKnowledge, pool: Pool, settings: Settings) -> "PromptExchange":
        """On top of what `knowledge` says of the endpoints in `pool`."""
        index = knowledge.index

        def seconds(column: int) -> float:
            return settings.kv_overlay_seconds if knowledge.has_events(column) else settings.kv_predicted_seconds

        others = SentElsewhere(
            knowledge, index.sketch, seconds, time.monotonic, most_keys=settings.peer_max_prompt_keys
        )
        pool.on_join(others.join)
        pool.on_leave(others.leave)
        return cls(own=OwnPrompts(index.sketch), others=others, secret_id=lambda: index.secret_id)
