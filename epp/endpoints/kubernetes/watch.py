"""Follow one kind of object for ever, in three layers that each have one failure policy.

`_stream` is one watch: it ends or fails. `_list_then_watch` begins with a full list, so that nothing that happened
while no watch was open is missed, and ends with its watch. `follow` starts over for ever, with growing pauses.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

import msgspec
import structlog
from aiohttp.http_exceptions import HttpProcessingError

from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, UnreachableError
from epp.endpoints.kubernetes.objects import ApiStatus, Named, ObjectList, WatchLine
from epp.endpoints.source import Source

_log = structlog.get_logger()

GONE = 410
FORBIDDEN = 403
NOT_FOUND = 404

SLICE = 16
"""Objects taken in without a pause: well under a millisecond of the event loop."""

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """All objects there are; what is not among them is gone."""

    objects: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """An object was made or changed."""

    object: T


@dataclass(frozen=True, slots=True)
class Removed:
    """The object with this name and uid is gone."""

    name: str
    uid: str


Change = Listed[T] | Put[T] | Removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All waits of a watch, in seconds."""

    list_silence: float = 30.0
    """Longest pause between bytes of a list."""
    watch: float = 300.0
    """Life of one watch; a new list follows, which also mends what was lost without a trace."""
    first_watch: float = 10.0
    """Life of the first watch after a start or a failure; each one that ends well is followed by one of twice its life.

    An API server that just learnt of a resource, or just came back, swaps the storage under it: a watch begun in those
    moments was seen to stay silent for half a minute.
    """
    watch_silence: float = 75.0
    """Longest pause on a watch: above the minute in which bookmarks come, so longer means a dead connection."""
    first_pause: float = 0.1
    longest_pause: float = 10.0
    absent_pause: float = 60.0
    """Pause after 403 and 404, which only a person ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[T]):
    """What to follow: one kind of object under one path, narrowed by selectors."""

    path: str
    kind: type[T]
    label_selector: str = ""
    field_selector: str = ""
    page: int = 100
    """Objects per page of a list: about a millisecond of the event loop each."""

    def query(self, **more: str) -> dict[str, str]:
        """Query parameters: the selectors that are set, and `more`."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in selectors.items() if value} | more


async def follow(
    client: KubernetesClient, resource: Resource[T], source: Source, timing: Timing
) -> AsyncIterator[Change[T]]:
    """Changes for ever; each reconnect begins with a list. `source` learns of life and failures."""
    pause, first_life = timing.first_pause, min(timing.first_watch, timing.watch)
    life = first_life
    while True:
        started = monotonic()
        try:
            async for change in _list_then_watch(client, resource, source, timing, life):
                yield change
            life = min(life * 2, timing.watch)
        except ApiError as error:
            life = first_life
            if error.status in (FORBIDDEN, NOT_FOUND):
                pause = max(pause, timing.absent_pause)
            if error.status == NOT_FOUND and source.optional:
                source.absent()
            elif error.status != GONE:  # normal in operation: our version is older than the server's history
                source.failed(str(error))
        except UnreachableError as error:
            life = first_life
            source.failed(str(error))
        if monotonic() - started > timing.longest_pause:
            pause = min(pause, timing.first_pause)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects
        pause = min(pause * 2, timing.longest_pause)


async def _list_then_watch(
    client: KubernetesClient, resource: Resource[T], source: Source, timing: Timing, life: float
) -> AsyncIterator[Change[T]]:
    objects, version = await _list(client, resource, timing)
    yield Listed(objects)
    source.seen(objects=len(objects))  # only now is it taken in
    async for change in _stream(client, resource, version, source, timing, life):
        yield change


async def _list(client: KubernetesClient, resource: Resource[T], timing: Timing) -> tuple[tuple[T, ...], str]:
    """All objects, at one version, a page at a time.

    No resourceVersion is asked for: an older answer from a cache could bring back what is already gone.
    """
    objects: list[T] = []
    query = resource.query(limit=str(resource.page))
    while True:
        async with client.get(resource.path, query, silence_seconds=timing.list_silence) as response:
            page = _decode_answer(await response.read(), ObjectList)
        for i, raw in enumerate(page.items or ()):
            if decoded := _decode(raw, resource.kind):
                objects.append(decoded)
            if i % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        if not page.metadata.continue_:
            return tuple(objects), page.metadata.resource_version
        query["continue"] = page.metadata.continue_


async def _stream(
    client: KubernetesClient, resource: Resource[T], version: str, source: Source, timing: Timing, life: float
) -> AsyncIterator[Change[T]]:
    lifetime = life * random.uniform(0.8, 1.0)  # noqa: S311 - spreads reconnects
    query = resource.query(
        watch="true", resourceVersion=version, allowWatchBookmarks="true", timeoutSeconds=str(max(1, int(lifetime)))
    )
    taken = 0
    async with client.get(resource.path, query, silence_seconds=timing.watch_silence) as response:
        try:
            async for text in response.content:
                source.seen()
                if change := _change(_decode_answer(text, WatchLine), resource.kind):
                    yield change
                taken += 1
                if taken % SLICE == 0:  # many lines may already be here, and the event loop is not ours alone
                    await asyncio.sleep(0)
        except HttpProcessingError as error:  # a line beyond any object's size
            raise UnreachableError(str(error)) from error


def _change(line: WatchLine, kind: type[T]) -> Change[T] | None:
    if line.type in ("ADDED", "MODIFIED"):
        decoded = _decode(line.object, kind)
        return None if decoded is None else Put(decoded)
    if line.type == "DELETED":
        metadata = _decode_answer(line.object, Named).metadata
        return Removed(metadata.name, metadata.uid)
    if line.type == "ERROR":
        status = _decode_answer(line.object, ApiStatus)
        raise ApiError(status.code, status.message)
    return None


def _decode(raw: msgspec.Raw, kind: type[T]) -> T | None:
    """The object, or None when it is not of the shape that its API promises."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        _log.warning("ignored an object of an unknown shape", kind=kind.__name__, error=str(error))
        return None


def _decode_answer(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise UnreachableError(f"an answer that is no {kind.__name__}: {error}") from error
