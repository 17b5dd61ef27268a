"""The servicer over real gRPC, as a gateway meets it."""

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from epp.extproc.transport.choice import Transport, transport_for
from epp.scheduling.outcome import Ending
from epp.settings import Settings, TransportName

from .grpc_gateway import METHOD, Gateway, served, settled
from .world import (
    DUPLEX,
    NONE,
    World,
    config,
    destination,
    kinds,
    request_body,
    request_headers,
    response_body,
    response_headers,
    streamed,
)


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def transport(world: World, carrier: TransportName) -> AsyncIterator[tuple[Transport, grpc.aio.Channel]]:
    async with served(world, carrier) as both:
        yield both


@pytest.fixture
def channel(transport: tuple[Transport, grpc.aio.Channel]) -> grpc.aio.Channel:
    return transport[1]


async def test_a_chat_request_from_headers_to_the_end_of_its_answer(world: World, channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(modes=config()), request_body(b'{"model": "m"}'), request_body(b"", end=True))
    answers = await gateway.answers(2)
    assert kinds(answers) == ["request_headers", "request_body"]
    assert destination(answers[0]) == ("10.0.0.1:8000", "10.0.0.1:8000")
    assert streamed(answers) == (b'{"model": "m"}', [True])
    assert world.in_flight == 1

    await gateway.send(response_headers(), response_body(b'{"usage": {"prompt_tokens": 7}}'))
    await gateway.send(response_body(b"", end=True))
    answers = await gateway.answers(3)
    assert streamed(answers, "response_body") == (b'{"usage": {"prompt_tokens": 7}}', [False, True])
    assert await gateway.ended() is grpc.StatusCode.OK
    await settled(world)
    assert world.in_flight == 0
    outcome = world.outcomes.told[0]
    assert (outcome.ending, outcome.status) == (Ending.COMPLETE, 200)
    assert outcome.usage is not None
    assert outcome.usage.prompt_tokens == 7


async def test_a_reservation_lasts_while_the_gateway_keeps_the_stream(world: World, channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(end=True, modes=config(DUPLEX, NONE)))
    await gateway.answers(1)
    await gateway.send(response_headers("text/event-stream"))
    await gateway.answers(1)
    await asyncio.sleep(0.05)
    assert world.in_flight == 1
    gateway.call.cancel()
    await settled(world)
    assert world.in_flight == 0


async def test_half_close_after_a_complete_request_is_answered_and_ended(
    world: World, channel: grpc.aio.Channel
) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(), request_body(b"{}", end=True))
    await gateway.call.done_writing()
    assert kinds(await gateway.answers(2)) == ["request_headers", "request_body"]
    assert await gateway.ended() is grpc.StatusCode.OK
    assert world.outcomes.told[0].ending is Ending.UNSEEN


async def test_half_close_in_the_middle_of_a_request_ends_it_without_a_pick(
    world: World, channel: grpc.aio.Channel
) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(), request_body(b"{"))
    await gateway.call.done_writing()
    assert await gateway.ended() is grpc.StatusCode.OK
    assert world.outcomes.told[0].pick is None


async def test_an_empty_pool_is_a_503_with_a_json_error(channel: grpc.aio.Channel, world: World) -> None:
    world.pool.replace([])
    gateway = Gateway(channel)
    await gateway.send(request_headers(("x-request-id", "r1"), end=True, modes=config()))
    (answer,) = await gateway.answers(1)
    immediate = answer.immediate_response
    headers = {option.header.key: option.header.raw_value.decode() for option in immediate.headers.set_headers}
    error = json.loads(immediate.body)["error"]
    assert immediate.status.code == 503
    assert headers["content-type"] == "application/json"
    assert (error["code"], error["request_id"]) == ("no_endpoint", "r1")
    assert await gateway.ended() is grpc.StatusCode.OK


async def test_bytes_that_are_no_message_end_their_stream_only(world: World, channel: grpc.aio.Channel) -> None:
    broken = Gateway(channel)
    await broken.send(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await broken.call.read()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    whole = Gateway(channel)
    await whole.send(request_headers(end=True))
    assert destination((await whole.answers(1))[0])[0]


async def test_bytes_that_are_no_http2_harm_no_one_else(world: World, carrier: TransportName) -> None:
    settings = Settings(host="127.0.0.1", grpc_port=0, transport=carrier, secure_serving=False)
    transport = transport_for(settings, world.servicer.serve)
    port = await transport.start()
    try:
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", bytes(range(256)) * 40):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            gateway = Gateway(channel)
            await gateway.send(request_headers(end=True))
            assert destination((await gateway.answers(1))[0])[0]
    finally:
        await transport.stop()


async def test_drain_lets_a_running_stream_finish_and_takes_no_new_one(
    world: World, transport: tuple[Transport, grpc.aio.Channel]
) -> None:
    server, channel = transport
    gateway = Gateway(channel)
    await gateway.send(request_headers(end=True, modes=config()))
    await gateway.answers(1)
    drained = asyncio.create_task(server.drain(30))
    await asyncio.sleep(0.05)
    assert not drained.done()
    await gateway.send(response_headers(), response_body(b"x", end=True))
    await gateway.answers(2)
    assert await gateway.ended() is grpc.StatusCode.OK
    await asyncio.wait_for(drained, 5)
    late = channel.stream_stream(METHOD)(iter([request_headers(end=True)]))
    with pytest.raises(grpc.aio.AioRpcError):
        await late.read()
