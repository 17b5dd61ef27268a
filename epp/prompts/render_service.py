"""Token ids from the engine itself, for models whose prompts cannot be built here.

vLLM answers the body of the real call at `.../render` (0.15 and later) with the token ids and, for media, their hashes
and places; vLLM and SGLang answer texts and messages at `/tokenize`. The body goes there as it came: every field that
this EPP does not know counts too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

import aiohttp
import msgspec
import numpy as np

from epp.prompts.asked import Body
from epp.prompts.model import WithoutTokensError
from epp.prompts.prompt import Api
from epp.prompts.rendered import RenderedTokens, read_rendered
from epp.prompts.side_child import ReadRendered
from epp.prompts.side_process import SideProcess

_PATHS = {
    Api.CHAT: "/v1/chat/completions/render",
    Api.COMPLETIONS: "/v1/completions/render",
    Api.MESSAGES: "/v1/messages/render",
    Api.RESPONSES: "/v1/responses/render",
}
_TOKENIZE = "/tokenize"
_TOKENIZED = frozenset({Api.CHAT, Api.COMPLETIONS})
_ABSENT = frozenset({404, 405, 501})
_SLICE_BYTES = 64 * 1024
_INLINE_BYTES = 64 * 1024
"""To decode so much of an answer takes half a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderServiceLimits:
    """Bounds of a call."""

    budget_seconds: float = 0.4
    hedge_seconds: float = 0.1
    """Without an answer for this long, a second worker is asked too."""
    most_bytes: int = 16 * 1024 * 1024
    """Of an answer: about two million token ids, twice what the index looks at."""
    failures: int = 5
    """So many failures in a row, a hedge that was needed counting as one, and a worker is left alone for a while."""
    rest_seconds: float = 5.0
    connections: int = 32


@dataclass(slots=True)
class _Worker:
    failures: int = 0
    rests_until: float = 0.0
    tokenize: set[Api] = field(default_factory=set)
    """APIs that it has no `render` for."""


_Answered: TypeAlias = tuple[_Worker, list[bytes]]


class RenderService:
    """Asks one of `targets()`, base URLs such as `http://10.0.0.1:8000`, in turn."""

    def __init__(self, targets: Callable[[], Sequence[str]], limits: RenderServiceLimits, process: SideProcess) -> None:
        self._targets = targets
        self._limits = limits
        self._process = process
        self._workers: dict[str, _Worker] = {}
        self._turn = 0
        self._session: aiohttp.ClientSession | None = None

    async def tokens(self, api: Api, body: Body) -> RenderedTokens:
        """The ids for a request of `api`. Raises WithoutTokensError: "render_unknown_api", "render_failed"."""
        if api not in _PATHS:
            raise WithoutTokensError("render_unknown_api")
        try:
            async with asyncio.timeout(self._limits.budget_seconds):
                return await self._hedged(api, body)
        except TimeoutError:
            raise WithoutTokensError("render_failed") from None

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _hedged(self, api: Api, body: Body) -> RenderedTokens:
        """The first good answer of two workers, the second asked only when the first is slow or fails."""
        waiting: set[asyncio.Task[_Answered]] = set()
        try:
            for target in self._next_targets():
                waiting.add(asyncio.ensure_future(self._ask(target, api, body)))
                answered = await self._first(waiting, self._limits.hedge_seconds)
                if answered is not None:
                    return answered
            answered = await self._first(waiting, None)
        finally:
            for task in waiting:
                task.cancel()
        if answered is None:
            raise WithoutTokensError("render_failed")
        return answered

    async def _first(self, waiting: set["asyncio.Task[_Answered]"], seconds: float | None) -> RenderedTokens | None:
        """The first good answer within `seconds`; failed ones leave `waiting`."""
        while waiting:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return None
            waiting -= done
            for task in done:
                if task.exception() is None:
                    rendered = await self._read(*task.result())
                    if rendered is not None:
                        return rendered
        return None

    async def _read(self, worker: _Worker, parts: list[bytes]) -> RenderedTokens | None:
        """What the answer says; a large one is decoded in the process beside."""
        try:
            if sum(map(len, parts)) <= _INLINE_BYTES:
                rendered = read_rendered(b"".join(parts))
            else:
                rendered = await self._read_beside(parts)
        except WithoutTokensError:
            return None
        except (ValueError, msgspec.MsgspecError):
            self._failed(worker)
            return None
        worker.failures = 0
        return rendered

    async def _read_beside(self, parts: list[bytes]) -> RenderedTokens:
        """Raises WithoutTokensError where there is no time for it, ValueError for an answer without token ids."""
        whole = await asyncio.to_thread(b"".join, parts)
        async with self._process.turn():
            answer, ids = await self._process.answer(ReadRendered(self._process.child_seconds), whole)
        if answer.refused:
            raise ValueError(answer.refused)
        return RenderedTokens(np.frombuffer(ids, dtype=np.uint32), answer.media)

    def _next_targets(self) -> list[str]:
        """Two workers that do not rest, another first each time."""
        targets = list(self._targets())
        self._workers = {target: self._workers.get(target) or _Worker() for target in targets}
        now = monotonic()
        ready = [target for target in targets if self._workers[target].rests_until <= now]
        if not ready:
            return []
        self._turn += 1
        first = self._turn % len(ready)
        return (ready[first:] + ready[:first])[:2]

    async def _ask(self, target: str, api: Api, body: Body) -> _Answered:
        worker, start = self._workers[target], monotonic()
        try:
            if api in worker.tokenize:
                return worker, await self._post(target + _TOKENIZE, body)
            try:
                return worker, await self._post(target + _PATHS[api], body)
            except aiohttp.ClientResponseError as error:
                if error.status not in _ABSENT or api not in _TOKENIZED:
                    raise
                worker.tokenize.add(api)
                return worker, await self._post(target + _TOKENIZE, body)
        except asyncio.CancelledError:  # another was quicker, or the time was up
            if monotonic() - start >= self._limits.hedge_seconds:
                self._failed(worker)
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if not (isinstance(error, aiohttp.ClientResponseError) and error.status in (400, 422)):
                self._failed(worker)
            raise

    def _failed(self, worker: _Worker) -> None:
        worker.failures += 1
        if worker.failures >= self._limits.failures:
            worker.rests_until = monotonic() + self._limits.rest_seconds

    async def _post(self, url: str, body: Body) -> list[bytes]:
        """The answer, in pieces. Raises ValueError for one that is too long."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._limits.connections)
            self._session = aiohttp.ClientSession(connector=connector, raise_for_status=True)
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        async with self._session.post(url, data=_slices(body), headers=headers, allow_redirects=False) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > self._limits.most_bytes:
                    raise ValueError("answer too long")
                parts.append(part)
            return parts


async def _slices(body: Body) -> AsyncIterator[memoryview]:
    """The body in slices: one write of all of it would copy what the socket does not take at once."""
    view = memoryview(body)
    for start in range(0, len(view), _SLICE_BYTES):
        yield view[start : start + _SLICE_BYTES]
