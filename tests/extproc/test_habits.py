"""Which streams end before their requests do."""

import pytest

from epp.scheduling.outcome import Ending

from .world import (
    BUFFERED,
    DUPLEX,
    NONE,
    Played,
    World,
    config,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Played):
    """A gateway that keeps the stream open for some seconds after the last message."""

    def __init__(self, messages: list[bytes], clock: Clock, seconds: float) -> None:
        super().__init__(messages)
        self._clock = clock
        self._seconds = seconds

    async def read(self) -> bytes | None:
        message = await super().read()
        if message is None:
            self._clock.now += self._seconds
        return message


def ask(request_mode: int, response_mode: int) -> list[bytes]:
    return [request_headers(modes=config(request_mode, response_mode)), request_body(b"{}", end=True)]


SSE = response_headers("text/event-stream")


@pytest.mark.parametrize(
    ("messages", "seconds", "ending"),
    [
        (ask(BUFFERED, NONE), 0.0, Ending.UNSEEN),
        (ask(BUFFERED, NONE), 60.0, Ending.ABORTED),
        (ask(DUPLEX, DUPLEX), 0.0, Ending.ABORTED),
        ([*ask(DUPLEX, NONE), SSE], 0.0, Ending.UNSEEN),
        ([*ask(DUPLEX, NONE), SSE], 60.0, Ending.COMPLETE),
        ([*ask(DUPLEX, NONE), SSE, response_trailers()], 0.0, Ending.COMPLETE),
        ([*ask(DUPLEX, NONE), response_headers("application/json")], 0.0, Ending.COMPLETE),
    ],
)
async def test_what_the_first_stream_of_a_gateway_says(messages: list[bytes], seconds: float, ending: Ending) -> None:
    clock = Clock()
    world = World(clock=clock)
    await world.servicer.serve(Slow(messages, clock, seconds))
    assert world.outcomes.told[0].ending is ending


async def test_a_gateway_that_was_seen_to_show_responses_left_early_when_it_shows_none() -> None:
    world = World()
    await world.servicer.serve(Played([*ask(DUPLEX, NONE), SSE, response_trailers()]))
    await world.servicer.serve(Played(ask(DUPLEX, NONE)))
    await world.servicer.serve(Played([*ask(DUPLEX, NONE), SSE]))
    assert [told.ending for told in world.outcomes.told] == [Ending.COMPLETE, Ending.ABORTED, Ending.COMPLETE]
