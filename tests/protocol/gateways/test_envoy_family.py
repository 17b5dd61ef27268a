"""Istio, kgateway and Envoy AI Gateway: Envoy itself, under three control planes."""

import grpc.aio
import pytest

from epp._pb.base_pb2 import Metadata
from epp._pb.external_processor_pb2 import ProcessingRequest
from epp.scheduling.outcome import Ending
from tests.extproc.grpc_gateway import Gateway, loaded, settled
from tests.extproc.world import (
    BUFFERED,
    DESTINATION,
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

from .reading import from_header, from_metadata

PSEUDO = ((":authority", "example"), (":scheme", "http"), ("x-forwarded-proto", "http"))


def with_metadata(message: bytes, **values: str) -> bytes:
    """Envoy sends the forwarded namespaces on every message, empty or not."""
    request = ProcessingRequest.FromString(message)
    request.metadata_context.CopyFrom(Metadata())
    if values:
        named = {f"{DESTINATION}{'-' + key if key != 'pick' else ''}": value for key, value in values.items()}
        request.metadata_context.filter_metadata["envoy.lb"].update(named)
    return request.SerializeToString()


async def test_istio_reads_the_metadata_and_reports_who_served(world: World, channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(
        with_metadata(request_headers(*PSEUDO, modes=config())),
        with_metadata(request_body(b'{"model": "m"}')),
        with_metadata(request_body(b"", end=True)),
    )
    answers = await gateway.answers(2)
    assert from_metadata(answers[0]) == from_header(answers[0]) == "10.0.0.1:8000"
    # The picked pod was not in EDS yet: Istio went round robin, and its own metadata still names the pick.
    elsewhere = {"pick": "10.0.0.1:8000", "served": "10.0.0.2:8000"}
    await gateway.send(with_metadata(response_headers(), **elsewhere))
    await gateway.answers(1)
    await loaded(world, [0, 1])
    await gateway.send(with_metadata(response_body(b"{}"), **elsewhere))
    await gateway.send(with_metadata(response_body(b"", end=True), **elsewhere))
    assert streamed(await gateway.rest(), "response_body") == (b"{}", [False, True])
    assert world.outcomes.told[0].served == "10.0.0.2:8000"


async def test_istio_and_a_get_without_a_body(channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(with_metadata(request_headers(*PSEUDO, end=True, modes=config(), path="/v1/models")))
    assert from_metadata((await gateway.answers(1))[0]) == "10.0.0.1:8000"


async def test_kgateway_2_1_repeats_the_last_chunk_of_a_large_body(world: World, channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(*PSEUDO, modes=config()), request_body(b"a" * 1_048_576))
    await gateway.send(request_body(b"tail", end=True), request_body(b"tail", end=True))
    answers = await gateway.answers(1)
    while not answers[-1].request_body.response.body_mutation.streamed_response.end_of_stream:
        answers += await gateway.answers(1)
    body, ends = streamed(answers)
    assert body == b"a" * 1_048_576 + b"tail"
    assert ends.count(True) == 1
    assert world.in_flight == 1
    assert await gateway.quiet()


@pytest.mark.parametrize("close", ["half-close", "reset"])
async def test_early_kgateway_2_0_buffers_the_request_and_shows_no_response(
    world: World, channel: grpc.aio.Channel, close: str
) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(*PSEUDO, modes=config(BUFFERED, NONE)))
    (first,) = await gateway.answers(1)
    assert destination(first) == ("", "")
    await gateway.send(request_body(b"{}", end=True))
    (second,) = await gateway.answers(1)
    assert destination(second) == ("10.0.0.1:8000", "10.0.0.1:8000")
    if close == "half-close":
        await gateway.call.done_writing()
        assert await gateway.rest() == []
    else:
        gateway.call.cancel()
    await settled(world)
    if close == "half-close":
        assert world.outcomes.told[0].ending is Ending.UNSEEN


async def test_ai_gateway_in_full_duplex(channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(*PSEUDO, modes=config()), request_body(b"{}"), request_body(b"", end=True))
    answers = await gateway.answers(2)
    assert from_header(answers[0]) == "10.0.0.1:8000"
    await gateway.send(response_headers("text/event-stream"), response_body(b"data: 1\n\n", end=True))
    assert kinds(await gateway.rest()) == ["response_headers", "response_body"]


async def test_ai_gateway_buffered_sends_no_body_before_the_header_answer(channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(*PSEUDO, modes=config(BUFFERED, BUFFERED)))
    (first,) = await gateway.answers(1)
    assert not first.request_headers.response.header_mutation.set_headers
    await gateway.send(request_body(b'{"model": "m"}', end=True))
    (second,) = await gateway.answers(1)
    assert destination(second) == ("10.0.0.1:8000", "10.0.0.1:8000")
    assert not second.request_body.response.HasField("body_mutation")
    await gateway.send(response_headers(), response_body(b"{}", end=True))
    rest = await gateway.rest()
    assert kinds(rest) == ["response_headers", "response_body"]
    assert not rest[1].response_body.response.HasField("body_mutation")


async def test_without_a_response_body_the_stream_lives_as_long_as_the_gateway_keeps_it(
    world: World, channel: grpc.aio.Channel
) -> None:
    gateway = Gateway(channel)
    await gateway.send(request_headers(*PSEUDO, end=True, modes=config(DUPLEX, NONE)))
    await gateway.answers(1)
    await gateway.send(response_headers("text/event-stream"))
    await gateway.answers(1)
    assert world.in_flight == 1
    assert await gateway.quiet()
    gateway.call.cancel()
    await settled(world)
    assert world.in_flight == 0
    assert world.outcomes.told[0].ending is Ending.COMPLETE
