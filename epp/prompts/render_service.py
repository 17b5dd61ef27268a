"""Token ids from the engine itself, for models whose prompts cannot be built here.

vLLM answers the body of the real call at `.../render` (0.15 and later) with the token ids and, for media, their hashes
and places; vLLM and SGLang answer texts and messages at `/tokenize`. The body goes there as it came: every field that
this EPP does not know counts too.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import aiohttp
import msgspec
import numpy as np

from epp.prompts.asked import Body
from epp.prompts.model import WithoutTokensError
from epp.prompts.prompt import Api, Media, TokenIds

_PATHS = {
    Api.CHAT: "/v1/chat/completions/render",
    Api.COMPLETIONS: "/v1/completions/render",
    Api.MESSAGES: "/v1/messages/render",
    Api.RESPONSES: "/v1/responses/render",
}
_TOKENIZE = "/tokenize"
_TOKENIZED = frozenset({Api.CHAT, Api.COMPLETIONS})
_ABSENT = frozenset({404, 405, 501})


class _Placeholder(msgspec.Struct):
    offset: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str | None]] | None = None
    mm_placeholders: dict[str, list[_Placeholder]] | None = None


class _Answer(msgspec.Struct):
    token_ids: list[int] | None = None
    tokens: list[int] | None = None
    features: _Features | None = None


_ANSWER = msgspec.json.Decoder(_Answer | list[_Answer])


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderServiceLimits:
    """Bounds of a call."""

    budget_seconds: float = 0.4
    hedge_seconds: float = 0.1
    """Without an answer for this long, a second worker is asked too."""
    most_bytes: int = 64 * 1024 * 1024
    failures: int = 5
    """So many failures in a row and a worker is left alone for a while."""
    rest_seconds: float = 5.0
    connections: int = 32


@dataclass(frozen=True, slots=True)
class RenderedTokens:
    """What the engine will compute."""

    tokens: TokenIds
    media: tuple[Media, ...] = ()


@dataclass(slots=True)
class _Worker:
    failures: int = 0
    rests_until: float = 0.0
    tokenize: set[Api] = field(default_factory=set)
    """APIs that it has no `render` for."""


class RenderService:
    """Asks one of `targets()`, base URLs such as `http://10.0.0.1:8000`, in turn."""

    def __init__(self, targets: Callable[[], Sequence[str]], limits: RenderServiceLimits) -> None:
        self._targets = targets
        self._limits = limits
        self._workers: dict[str, _Worker] = {}
        self._turn = 0
        self._session: aiohttp.ClientSession | None = None

    async def tokens(self, api: Api, body: Body) -> RenderedTokens:
        """The ids for a request of `api`. Raises WithoutTokensError: "render_unknown_api", "render_failed"."""
        if api not in _PATHS:
            raise WithoutTokensError("render_unknown_api")
        try:
            async with asyncio.timeout(self._limits.budget_seconds):
                return await self._hedged(api, bytes(body))
        except TimeoutError:
            raise WithoutTokensError("render_failed") from None

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _hedged(self, api: Api, body: bytes) -> RenderedTokens:
        """The first good answer of two workers, the second asked only when the first is slow or fails."""
        waiting: set[asyncio.Task[RenderedTokens]] = set()
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

    async def _first(
        self, waiting: set["asyncio.Task[RenderedTokens]"], seconds: float | None
    ) -> RenderedTokens | None:
        """The first good answer within `seconds`; failed ones leave `waiting`."""
        while waiting:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return None
            waiting -= done
            for task in done:
                if task.exception() is None:
                    return task.result()
        return None

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

    async def _ask(self, target: str, api: Api, body: bytes) -> RenderedTokens:
        worker = self._workers[target]
        try:
            if api in worker.tokenize:
                answer = await self._post(target + _TOKENIZE, body)
            else:
                try:
                    answer = await self._post(target + _PATHS[api], body)
                except aiohttp.ClientResponseError as error:
                    if error.status not in _ABSENT or api not in _TOKENIZED:
                        raise
                    worker.tokenize.add(api)
                    answer = await self._post(target + _TOKENIZE, body)
            rendered = _rendered(answer)
        except (aiohttp.ClientError, OSError, ValueError, msgspec.MsgspecError) as error:
            if not (isinstance(error, aiohttp.ClientResponseError) and error.status in (400, 422)):
                self._failed(worker)
            raise
        worker.failures = 0
        return rendered

    def _failed(self, worker: _Worker) -> None:
        worker.failures += 1
        if worker.failures >= self._limits.failures:
            worker.rests_until = monotonic() + self._limits.rest_seconds

    async def _post(self, url: str, body: bytes) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._limits.connections)
            self._session = aiohttp.ClientSession(connector=connector, raise_for_status=True)
        headers = {"content-type": "application/json"}
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > self._limits.most_bytes:
                    raise ValueError("answer too long")
                parts.append(part)
            return b"".join(parts)


def _rendered(answer: bytes) -> RenderedTokens:
    """Raises ValueError or msgspec.MsgspecError for an answer without token ids."""
    decoded = _ANSWER.decode(answer)
    first = decoded[0] if isinstance(decoded, list) and decoded else decoded
    ids = first.token_ids or first.tokens if isinstance(first, _Answer) else None
    if ids is None or not isinstance(first, _Answer):
        raise ValueError("answer without token ids")
    return RenderedTokens(np.array(ids, dtype=np.uint32), _media(first.features))


def _media(features: _Features | None) -> tuple[Media, ...]:
    """The media in the order of their places. Raises ValueError where one has no hash: it could be any."""
    if features is None or not features.mm_placeholders:
        return ()
    items = []
    for kind, places in features.mm_placeholders.items():
        hashes = (features.mm_hashes or {}).get(kind) or []
        for place, hash_ in zip(places, hashes, strict=True):
            if not hash_:
                raise ValueError("media without a hash")
            items.append(Media(id=hash_, offset=place.offset))
    return tuple(sorted(items, key=lambda item: item.offset))
