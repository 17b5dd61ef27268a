"""Text to token ids off the event loop: only what no earlier text had in common is encoded.

A text is cut at places that are safe for its tokenizer (`cuts.py`) and each chunk is looked up; the missing ones are
encoded inline when they are short, else in threads, in groups, so that a large prompt neither blocks the event loop
nor keeps a thread from the next request for long.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import random
from typing import TypeVar

import numpy as np
import structlog

from epp.prompts.chunk_cache import ChunkCache
from epp.prompts.cuts import Cutter, TextEncoder
from epp.prompts.metrics import EncodingMetrics
from epp.prompts.prompt import EMPTY_TOKENS, TokenIds

INLINE_CHARACTERS = 1024
"""Up to this many characters are encoded on the event loop: less time than a change of threads costs."""
GROUP_CHARACTERS = 8 * 1024
"""Characters that one call in a thread encodes; about 3 ms. To take over and free its ids needs Python's lock."""
_SWITCH_SECONDS = 0.0005
"""How long a thread may keep Python's lock while the event loop waits for it; the default is ten times as long."""
_CUT_INLINE_CHARACTERS = 256 * 1024
_CHECKED_CHARACTERS = 256 * 1024

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)
_numbers = count()


class LateError(Exception):
    """There was no time for token ids; the text is the reason, one of a fixed few words."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text, or of its beginning where there was no time for all of it."""

    tokens: TokenIds
    unseen_characters: int = 0
    """Characters behind `tokens` that are not encoded."""
    late: str = ""
    """Why there was no time; empty: everything is encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingLimits:
    """Bounds of the work on texts."""

    threads: int = 1
    budget_seconds: float = 0.25
    queued_characters: int = 16 * 1024 * 1024
    check_share: float = 0.001
    """Share of texts whose cut encoding is compared with a whole one."""


class EncodingThreads:
    """The threads that encode for all models, and the bound on what waits for them."""

    def __init__(self, limits: EncodingLimits, cache: ChunkCache, metrics: EncodingMetrics) -> None:
        self.limits = limits
        self.cache = cache
        self.metrics = metrics
        self.queued_characters = 0
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._threads = ThreadPoolExecutor(max_workers=limits.threads, thread_name_prefix="tokenizer")
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def within_budget(self, work: Callable[[], Result], characters: int) -> Result:
        """The result of `work` on so many characters, done in a thread; it goes on after the budget.

        Raises LateError.
        """
        if self.queued_characters + characters > self.limits.queued_characters:
            raise LateError("queue_full")
        self.queued_characters += characters
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(partial(self._worked, characters))
        try:
            done, _ = await asyncio.wait({future}, timeout=self.limits.budget_seconds)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not done:
            raise LateError("late")
        return future.result()

    def _worked(self, characters: int, future: "asyncio.Future[Result]") -> None:
        self.queued_characters -= characters
        if not future.cancelled():
            future.exception()  # whoever still waits gets it too

    def keep(self, task: "asyncio.Task[None]") -> None:
        """Hold on to a task that outlives its request."""
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, UnicodeEncodeError):
            _log.error("encoding failed", exc_info=error)

    def close(self) -> None:
        """Drop what waits."""
        for task in self._background:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


class CachedEncoding:
    """The encoding of one tokenizer with the chunks of earlier texts at hand."""

    def __init__(self, encoder: TextEncoder, cutter: Cutter, threads: EncodingThreads) -> None:
        self.encoder = encoder
        self.cutter = cutter
        self._threads = threads
        self._number = next(_numbers)
        self.differed = False
        """Whether a check found that cuts change the tokens; since then texts are encoded whole."""

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules by which texts are cut."""
        return tuple(rule.name for rule in self.cutter.rules)

    async def encode(self, text: str) -> Encoded:
        """The ids of `text` without special tokens around it, within the budget.

        Raises UnicodeEncodeError for text with lone surrogates.
        """
        if len(text) > _CUT_INLINE_CHARACTERS:
            chunks, ids = await self._threads.run(partial(self._look_up, text))
        else:
            chunks, ids = self._look_up(text)
        missing = [i for i, tokens in enumerate(ids) if tokens is None]
        characters = sum(len(chunks[i]) for i in missing)
        self._threads.metrics.characters(len(text), characters)
        late = ""
        if characters <= INLINE_CHARACTERS:
            self._put(chunks, ids, missing, self.encoder.encode_all([chunks[i] for i in missing]))
        elif self._threads.queued_characters + characters > self._threads.limits.queued_characters:
            late = "queue_full"
        else:
            late = await self._in_threads(chunks, ids, missing, characters)
        if not late and self._is_sample(chunks):
            self._check(text, ids)
        return _joined(chunks, ids, late)

    def encode_now(self, text: str) -> TokenIds:
        """All ids of `text`, at once, for callers in a thread of their own. Raises UnicodeEncodeError."""
        chunks, ids = self._look_up(text)
        missing = [i for i, tokens in enumerate(ids) if tokens is None]
        self._put(chunks, ids, missing, self.encoder.encode_all([chunks[i] for i in missing]))
        self._threads.metrics.characters(len(text), sum(len(chunks[i]) for i in missing))
        cut = _joined(chunks, ids, "").tokens
        if self._is_sample(chunks) and len(text) <= _CHECKED_CHARACTERS:
            (whole,) = self.encoder.encode_all([text])
            self._judge(len(text), np.array_equal(whole, cut))
            return whole
        return cut

    def _look_up(self, text: str) -> tuple[list[str], list[TokenIds | None]]:
        """The chunks of a text, and the ids of those that are known."""
        chunks = self.cutter.cut(text)
        return chunks, [self._threads.cache.get((self._number, chunk)) for chunk in chunks]

    async def _in_threads(
        self, chunks: list[str], ids: list[TokenIds | None], missing: list[int], characters: int
    ) -> str:
        """Encode what is missing; the work goes on after the budget, for the next turn."""
        task = asyncio.ensure_future(self._all_groups(chunks, ids, missing, characters))
        self._threads.keep(task)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._threads.limits.budget_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            return "late"
        task.result()
        return ""

    async def _all_groups(
        self, chunks: list[str], ids: list[TokenIds | None], missing: list[int], characters: int
    ) -> None:
        threads = self._threads
        groups = _groups(chunks, missing)
        threads.queued_characters += characters

        async def every(step: int) -> None:
            for group in groups[step :: threads.limits.threads]:
                texts = [chunks[i] for i in group]
                self._put(chunks, ids, group, await threads.run(partial(self.encoder.encode_all, texts)))

        try:
            await asyncio.gather(*(every(step) for step in range(min(threads.limits.threads, len(groups)))))
        finally:
            threads.queued_characters -= characters

    def _put(
        self, chunks: Sequence[str], ids: list[TokenIds | None], places: Sequence[int], encoded: Sequence[TokenIds]
    ) -> None:
        for i, tokens in zip(places, encoded, strict=True):
            ids[i] = tokens
            self._threads.cache.put((self._number, chunks[i]), tokens)

    def _is_sample(self, chunks: Sequence[str]) -> bool:
        """Whether to compare the tokens of these chunks with those of the whole."""
        return len(chunks) > 1 and random() < self._threads.limits.check_share  # noqa: S311 - a sample

    def _check(self, text: str, ids: list[TokenIds | None]) -> None:
        """Compare with a whole encoding, later and in a thread."""
        if len(text) <= _CHECKED_CHARACTERS and self._threads.queued_characters == 0:
            cut = np.concatenate([tokens for tokens in ids if tokens is not None])
            self._threads.keep(asyncio.ensure_future(self._compare(text, cut)))

    async def _compare(self, text: str, cut: TokenIds) -> None:
        (whole,) = await self._threads.run(partial(self.encoder.encode_all, [text]))
        self._judge(len(text), np.array_equal(whole, cut))

    def _judge(self, characters: int, equal: bool) -> None:
        """A comparison has ended; a difference ends the cutting for good."""
        self._threads.metrics.checked(equal)
        if not equal and not self.differed:
            names, self.cutter, self.differed = self.rules, Cutter(()), True
            _log.error("token cache switched off: a cut changed the tokens", rules=names, characters=characters)


def _groups(chunks: Sequence[str], missing: Sequence[int]) -> list[list[int]]:
    """The missing chunks in groups of about GROUP_CHARACTERS."""
    groups: list[list[int]] = [[]]
    size = 0
    for i in missing:
        if size >= GROUP_CHARACTERS:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += len(chunks[i])
    return groups


def _joined(chunks: Sequence[str], ids: Sequence[TokenIds | None], late: str) -> Encoded:
    """The leading ids that are known."""
    leading: list[TokenIds] = []
    for tokens in ids:
        if tokens is None:
            break
        leading.append(tokens)
    unseen = sum(len(chunk) for chunk in chunks[len(leading) :]) if late else 0
    return Encoded(np.concatenate(leading) if leading else EMPTY_TOKENS, unseen, late)
