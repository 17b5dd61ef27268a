"""Reservations last as long as their streams do, through a real Envoy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, ClientTimeout, web

from epp.endpoints.endpoint import Endpoint
from epp.extproc.transport.grpcio import GrpcTransport
from epp.scheduling.outcome import Ending
from epp.settings import BodyMode
from epp.simulate.envoy import EnvoyConfig, running_envoy
from tests.extproc.world import World

from .test_matrix import settled

EVENTS = 30
EVENT = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'


async def slow_stream(request: web.Request) -> web.StreamResponse:
    """About three seconds of events."""
    await request.read()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(EVENTS):
        await response.write(EVENT)
        await asyncio.sleep(0.1)
    await response.write_eof()
    return response


@asynccontextmanager
async def placed(response_mode: BodyMode, *, trailers: bool = True) -> AsyncIterator[tuple[World, GrpcTransport, str]]:
    world = World()
    transport = GrpcTransport(world.servicer.serve, host="127.0.0.1", port=0)
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


@pytest.mark.parametrize("response_mode", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED])
async def test_a_long_answer_stays_reserved_to_its_end(response_mode: BodyMode) -> None:
    async with placed(response_mode) as (world, _, url), ClientSession(timeout=ClientTimeout(60)) as client:
        async with client.post(url, data=b"{}") as response:
            received = 0
            async for chunk in response.content.iter_any():
                received += len(chunk)
                if received < EVENTS * len(EVENT):
                    assert world.in_flight == 1
            assert received == EVENTS * len(EVENT)
        await settled(world)
        (outcome,) = world.outcomes.told
        assert outcome.ending is Ending.COMPLETE
        assert (outcome.time_to_first_token is None) == (response_mode is BodyMode.NONE)


@pytest.mark.parametrize("response_mode", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED])
async def test_a_client_that_leaves_frees_the_load_at_once(response_mode: BodyMode) -> None:
    async with placed(response_mode) as (world, _, url):
        async with ClientSession() as client:
            response = await client.post(url, data=b"{}")
            await response.content.readany()
            assert world.in_flight == 1
            response.close()
        await settled(world)


async def test_without_response_trailers_the_stream_ends_early_and_says_so() -> None:
    async with (
        placed(BodyMode.NONE, trailers=False) as (world, _, url),
        ClientSession() as client,
        client.post(url, data=b"{}") as response,
    ):
        await response.content.readany()
        await settled(world)
        assert [outcome.ending for outcome in world.outcomes.told] == [Ending.UNSEEN]
        assert (await response.read()).count(b"data:") >= EVENTS - 2


async def test_a_drain_under_load_loses_no_request_and_no_byte() -> None:
    async with (
        placed(BodyMode.FULL_DUPLEX_STREAMED) as (world, transport, url),
        ClientSession(timeout=ClientTimeout(60)) as client,
    ):

        async def whole() -> bool:
            async with client.post(url, data=b"{}") as response:
                return response.status == 200 and await response.read() == EVENT * EVENTS

        running = [asyncio.create_task(whole()) for _ in range(20)]
        for _ in range(500):
            await asyncio.sleep(0.01)
            if world.in_flight == 20:
                break
        await asyncio.wait_for(transport.drain(60), 60)
        assert await asyncio.gather(*running) == [True] * 20
        assert world.in_flight == 0
