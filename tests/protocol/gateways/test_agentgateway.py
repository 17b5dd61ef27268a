"""agentgateway: its own Rust proxy; full duplex both ways, announced since 1.3."""

import grpc.aio
import pytest

from epp._pb.base_pb2 import HeaderMap, HeaderValue
from epp._pb.external_processor_pb2 import HttpHeaders, ProcessingRequest, ProtocolConfiguration
from epp.scheduling.outcome import Ending
from tests.extproc.grpc_gateway import Gateway, settled
from tests.extproc.world import (
    DUPLEX,
    World,
    kinds,
    request_body,
    request_trailers,
    response_body,
    response_headers,
    streamed,
)

from .reading import from_header


def headers(*, announced: bool = True, end: bool = False, request_id: str = "r1") -> bytes:
    """Ordinary headers in `raw_value`, pseudo-headers last and in `value`; no metadata, no attributes."""
    ordinary = [
        HeaderValue(key="content-type", raw_value=b"application/json"),
        HeaderValue(key="x-request-id", raw_value=request_id.encode()),
    ]
    pseudo = [
        HeaderValue(key=":method", value="GET" if end else "POST"),
        HeaderValue(key=":scheme", value="http"),
        HeaderValue(key=":authority", value="example"),
        HeaderValue(key=":path", value="/v1/chat/completions"),
    ]
    modes = ProtocolConfiguration(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=ordinary + pseudo), end_of_stream=end),
        protocol_config=modes if announced else None,
    ).SerializeToString()


@pytest.mark.parametrize("announced", [True, False], ids=["1.3 and later", "1.0 to 1.2"])
async def test_a_300_kb_chat_in_13_messages_and_a_streamed_answer(
    world: World, channel: grpc.aio.Channel, announced: bool
) -> None:
    gateway = Gateway(channel)
    chunks = [bytes([i]) * size for i, size in enumerate([16_384] * 6 + [95_000, 32_768, 32_768, 16_384, 8_000, 1_000])]
    await gateway.send(headers(announced=announced), *map(request_body, chunks), request_body(b"", end=True))
    answers = await gateway.answers(1)
    assert from_header(answers[0]) == "10.0.0.1:8000"
    while not answers[-1].request_body.response.body_mutation.streamed_response.end_of_stream:
        answers += await gateway.answers(1)
    assert streamed(answers)[0] == b"".join(chunks)
    assert world.reader.seen[0][0] == "/v1/chat/completions"

    await gateway.send(response_headers("text/event-stream", served="10.0.0.1:8000"), response_body(b"data: 1\n\n"))
    await gateway.send(response_body(b"", end=True))
    assert kinds(await gateway.rest()) == ["response_headers", "response_body", "response_body"]


async def test_a_body_that_ends_by_trailers(channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(headers(), request_body(b"{}"), request_trailers())
    answers = await gateway.answers(3)
    # Its request body ends with the answer to the trailers.
    assert kinds(answers) == ["request_headers", "request_body", "request_trailers"]
    assert streamed(answers) == (b"{}", [False])


async def test_the_rpc_stays_open_between_request_and_response(channel: grpc.aio.Channel) -> None:
    """Until 2026-08 an end after the request phase is a 500 for every request."""
    gateway = Gateway(channel)
    await gateway.send(headers(), request_body(b"{}", end=True))
    await gateway.answers(2)
    assert await gateway.quiet()


async def test_a_worker_that_cannot_be_reached_is_a_half_close_without_a_response(
    world: World, channel: grpc.aio.Channel
) -> None:
    gateway = Gateway(channel)
    await gateway.send(headers(end=True))
    await gateway.answers(1)
    await gateway.call.done_writing()
    assert await gateway.rest() == []
    await settled(world)
    assert world.in_flight == 0
    assert world.outcomes.told[0].ending is Ending.ABORTED


async def test_each_attempt_of_a_retried_request_gets_another_endpoint(world: World, channel: grpc.aio.Channel) -> None:
    picks = []
    for _ in range(2):
        gateway = Gateway(channel)
        await gateway.send(headers(end=True, request_id="same"))
        picks.append(from_header((await gateway.answers(1))[0]))
        await gateway.send(response_headers(status="503", end=True))
        await gateway.rest()
        await settled(world)
    assert len(set(picks)) == 2


async def test_a_client_that_leaves_while_the_picker_thinks_is_a_half_close(
    world: World, channel: grpc.aio.Channel
) -> None:
    gateway = Gateway(channel)
    await gateway.send(headers(), request_body(b"{"))
    await gateway.call.done_writing()
    assert await gateway.rest() == []
    await settled(world)
    assert world.in_flight == 0
