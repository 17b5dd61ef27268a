"""Any cut of any body, any legal order and any illegal one: answers fit, nothing hangs, nothing stays reserved."""

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.extproc.exchange import ProtocolError
from epp.extproc.rules import ExchangeRules
from epp.extproc.transport.stream import StreamGoneError
from epp.scheduling.outcome import Ending
from epp.settings import BodyMode

from .world import (
    BUFFERED,
    BUFFERED_PARTIAL,
    DUPLEX,
    NONE,
    STREAMED,
    Played,
    World,
    config,
    destination,
    kinds,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
)

MODES = st.sampled_from([NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, DUPLEX])


@dataclass(frozen=True)
class Half:
    """One direction of an HTTP exchange as a gateway cuts it."""

    chunks: list[bytes]
    ends_by: str

    @property
    def bodyless(self) -> bool:
        return self.ends_by == "headers"

    @property
    def bytes(self) -> bytes:
        return b"" if self.bodyless else b"".join(self.chunks)


HALVES = st.builds(
    Half,
    chunks=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    ends_by=st.sampled_from(["headers", "data", "empty", "trailers"]),
)


def body_messages(half: Half, mode: int, message: object, trailers: bytes) -> list[bytes]:
    assert callable(message)
    if half.bodyless or mode == NONE:
        return []
    if mode in (BUFFERED, BUFFERED_PARTIAL):
        whole = [message(half.bytes, end=half.ends_by != "trailers")]
        return [*whole, trailers] if half.ends_by == "trailers" else whole
    if half.ends_by == "data":
        *first, last = half.chunks
        return [*(message(chunk) for chunk in first), message(last, end=True)]
    chunks = [message(chunk) for chunk in half.chunks]
    return [*chunks, message(b"", end=True) if half.ends_by == "empty" else trailers]


def run(world: World, stream: Played) -> None:
    asyncio.run(asyncio.wait_for(world.servicer.serve(stream), 5))


@settings(max_examples=150)
@given(request=HALVES, response=HALVES, request_mode=MODES, response_mode=MODES, announced=st.booleans())
def test_every_legal_exchange(
    request: Half, response: Half, request_mode: int, response_mode: int, announced: bool
) -> None:
    names = {0: BodyMode.NONE, 1: BodyMode.STREAMED, 2: BodyMode.BUFFERED, 3: BodyMode.BUFFERED_PARTIAL}
    known = ExchangeRules(
        request_body_mode=names.get(request_mode, BodyMode.AUTO),
        response_body_mode=names.get(response_mode, BodyMode.AUTO),
    )
    world = World(rules=ExchangeRules() if announced else known)
    asked = body_messages(request, request_mode, request_body, request_trailers())
    answered = body_messages(response, response_mode, response_body, response_trailers())
    stream = Played(
        [
            request_headers(end=request.bodyless, modes=config(request_mode, response_mode) if announced else None),
            *asked,
            response_headers(end=response.bodyless),
            *answered,
        ]
    )
    run(world, stream)

    answers = stream.answers
    assert sum(destination(answer)[1] != "" for answer in answers) == 1
    if request_mode == DUPLEX and not request.bodyless:
        assert streamed(answers)[0] == request.bytes
        assert streamed(answers)[1].count(True) == (request.ends_by != "trailers")
    else:
        assert kinds(answers).count("request_body") == sum(1 for m in asked if m != request_trailers())
    assert kinds(answers).count("request_trailers") == asked.count(request_trailers())
    assert kinds(answers).count("response_headers") == 1
    if response_mode == DUPLEX and not response.bodyless:
        assert streamed(answers, "response_body")[0] == response.bytes
    assert kinds(answers).count("response_trailers") == answered.count(response_trailers())
    order = ["request_headers", "request_body", "request_trailers"]
    seen = [order.index(kind) for kind in kinds(answers) if kind in order]
    assert seen == sorted(seen)
    assert [outcome.ending for outcome in world.outcomes.told] == [Ending.COMPLETE]
    assert world.in_flight == 0
    assert world.servicer.status().buffered_bytes == 0


ANYTHING = st.one_of(
    st.builds(request_headers, end=st.booleans(), modes=st.none() | st.builds(config, MODES, MODES)),
    st.builds(request_headers, end=st.booleans(), observe=st.booleans(), subset=st.sampled_from([None, [], "x"])),
    st.builds(request_body, st.binary(max_size=30), end=st.booleans()),
    st.builds(response_headers, end=st.booleans(), served=st.sampled_from(["", "10.0.0.2:8000", "nobody"])),
    st.builds(response_body, st.binary(max_size=30), end=st.booleans()),
    st.just(request_trailers()),
    st.just(response_trailers()),
    st.binary(max_size=12),
)


@settings(max_examples=250)
@given(
    messages=st.lists(ANYTHING, max_size=12), breaks=st.booleans(), workers=st.integers(0, 2), limit=st.integers(0, 60)
)
def test_every_illegal_order(messages: list[bytes], breaks: bool, workers: int, limit: int) -> None:
    world = World(workers, ExchangeRules(max_body_bytes=limit))
    stream = Played(messages, breaks=breaks)
    try:
        run(world, stream)
    except (ProtocolError, StreamGoneError):
        pass
    assert world.in_flight == 0
    assert world.servicer.status().open == 0
    assert world.servicer.status().buffered_bytes == 0
    assert len(world.outcomes.told) == 1
    assert sum(destination(answer)[1] != "" for answer in stream.answers) <= 1
    for kind in ("request_body", "response_body"):
        assert streamed(stream.answers, kind)[1].count(True) <= 1


@given(steps=st.integers(0, 9))
def test_a_gateway_that_leaves_at_any_point_frees_the_load(steps: int) -> None:
    messages = [
        request_headers(modes=config()),
        request_body(b"{"),
        request_body(b"}"),
        request_body(b"", end=True),
        response_headers("text/event-stream"),
        response_body(b"data: a\n\n"),
        response_body(b"data: b\n\n"),
        response_body(b"", end=False),
        response_trailers(),
    ]

    async def leave() -> None:
        world = World()
        task = asyncio.create_task(world.servicer.serve(Played(messages[:steps], silent=True)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.in_flight == (4 <= steps < 9)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.in_flight == 0
        assert world.servicer.status().open == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(leave())
