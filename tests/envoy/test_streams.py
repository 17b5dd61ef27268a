"""Reservations last as long as their streams do, through a real Envoy."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, ClientTimeout, web

from epp.endpoints.endpoint import Endpoint
from epp.extproc.transport.choice import Transport, transport_for
from epp.scheduling.outcome import Ending
from epp.settings import BodyMode, Settings, TransportName
from epp.simulate.envoy import EnvoyConfig, running_envoy
from tests.extproc.world import World

from .test_matrix import settled

EVENTS = 30
EVENT = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
PAUSE_HEADER = "x-pause-seconds"
WHOLE = EVENT * EVENTS


async def slow_stream(request: web.Request) -> web.StreamResponse:
    """A stream of events, with about three seconds from the first to the last, or as the request says."""
    await request.read()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(EVENTS):
        await response.write(EVENT)
        await asyncio.sleep(float(request.headers.get(PAUSE_HEADER, "0.1")))
    await response.write_eof()
    return response


@asynccontextmanager
async def placed(
    response_mode: BodyMode, carrier: TransportName, *, trailers: bool = True
) -> AsyncIterator[tuple[World, Transport, str]]:
    world = World()
    settings = Settings(host="127.0.0.1", grpc_port=0, transport=carrier, secure_serving=False)
    transport = transport_for(settings, world.servicer.serve)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", slow_stream)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    world.pool.replace([Endpoint(name="w", address="127.0.0.1", port=runner.addresses[0][1])])
    config = EnvoyConfig(
        picker_port=await transport.start(),
        request_body=BodyMode.FULL_DUPLEX_STREAMED if trailers else BodyMode.NONE,
        response_body=response_mode,
        trailers=trailers,
    )
    try:
        with running_envoy(config) as envoy:
            yield world, transport, f"http://127.0.0.1:{envoy.port}/v1/chat/completions"
    finally:
        await transport.stop()
        await runner.cleanup()


async def reserved_throughout(world: World, url: str, pause: float) -> float:
    """Take one whole answer, and see its reservation at each of its events; the seconds that it took."""
    begin = time.monotonic()
    async with (
        ClientSession(timeout=ClientTimeout(240)) as client,
        client.post(url, data=b"{}", headers={PAUSE_HEADER: str(pause)}) as response,
    ):
        received = b""
        async for chunk in response.content.iter_any():
            received += chunk
            if len(received) < len(WHOLE):
                assert world.in_flight == 1
        assert received == WHOLE
    seconds = time.monotonic() - begin
    await settled(world)
    return seconds


@pytest.mark.parametrize("response_mode", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED])
async def test_a_long_answer_stays_reserved_to_its_end(response_mode: BodyMode, carrier: TransportName) -> None:
    async with placed(response_mode, carrier) as (world, _, url):
        await reserved_throughout(world, url, 0.1)
        (outcome,) = world.outcomes.told
        assert outcome.ending is Ending.COMPLETE
        assert (outcome.time_to_first_token is None) == (response_mode is BodyMode.NONE)


@pytest.mark.slow
async def test_an_answer_of_a_minute_stays_reserved_for_a_minute_however_it_is_shown_and_carried() -> None:
    """All at once, so that it takes one minute."""

    async def minute(response_mode: BodyMode, carrier: TransportName) -> None:
        async with placed(response_mode, carrier) as (world, _, url):
            assert await reserved_throughout(world, url, 60 / (EVENTS - 1)) > 60
            assert [outcome.ending for outcome in world.outcomes.told] == [Ending.COMPLETE]

    async with asyncio.TaskGroup() as tasks:
        for carrier in TransportName:
            for response_mode in (BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED):
                tasks.create_task(minute(response_mode, carrier))


@pytest.mark.parametrize("response_mode", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED])
async def test_a_client_that_leaves_frees_the_load_at_once(response_mode: BodyMode, carrier: TransportName) -> None:
    async with placed(response_mode, carrier) as (world, _, url):
        async with ClientSession() as client:
            response = await client.post(url, data=b"{}", headers={PAUSE_HEADER: "2"})
            await response.content.readany()
            assert world.in_flight == 1
            response.close()
        await settled(world)


async def test_without_response_trailers_the_stream_ends_early_and_says_so(carrier: TransportName) -> None:
    async with (
        placed(BodyMode.NONE, carrier, trailers=False) as (world, _, url),
        ClientSession() as client,
        client.post(url, data=b"{}") as response,
    ):
        await response.content.readany()
        await settled(world)
        assert [outcome.ending for outcome in world.outcomes.told] == [Ending.UNSEEN]
        assert (await response.read()).count(b"data:") >= EVENTS - 2


async def test_a_drain_under_load_loses_no_request_and_no_byte(carrier: TransportName) -> None:
    async with (
        placed(BodyMode.FULL_DUPLEX_STREAMED, carrier) as (world, transport, url),
        ClientSession(timeout=ClientTimeout(60)) as client,
    ):

        async def whole() -> bool:
            async with client.post(url, data=b"{}") as response:
                return response.status == 200 and await response.read() == WHOLE

        running = [asyncio.create_task(whole()) for _ in range(20)]
        for _ in range(500):
            await asyncio.sleep(0.01)
            if world.in_flight == 20:
                break
        await asyncio.wait_for(transport.drain(60), 60)
        assert await asyncio.gather(*running) == [True] * 20
        assert world.in_flight == 0
