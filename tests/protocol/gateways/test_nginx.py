"""NGINX Gateway Fabric: a Go shim that sends one request and reads until the server ends the call."""

import grpc.aio

from epp._pb.base_pb2 import HeaderMap, HeaderValue
from epp._pb.external_processor_pb2 import HttpHeaders, ProcessingRequest
from epp.scheduling.outcome import Ending
from tests.extproc.grpc_gateway import Gateway, settled
from tests.extproc.world import World, request_body

from .reading import from_header


def headers(*, end: bool = False) -> bytes:
    """All values in `value`; no pseudo-headers, no protocol_config, no metadata."""
    plain = {"Content-Type": "application/json", "x-epp-host": "epp.default", "x-epp-port": "9002"}
    return ProcessingRequest(
        request_headers=HttpHeaders(
            headers=HeaderMap(headers=[HeaderValue(key=key, value=value) for key, value in plain.items()]),
            end_of_stream=end,
        )
    ).SerializeToString()


async def test_one_message_of_body_then_half_close_and_the_server_ends_the_call(
    world: World, channel: grpc.aio.Channel
) -> None:
    gateway = Gateway(channel)
    body = b'{"model": "m", "messages": [' + b" " * 5_000_000 + b"]}"
    await gateway.send(headers(), request_body(body, end=True))
    await gateway.call.done_writing()
    answers = await gateway.rest()
    assert from_header(answers[0]) == "10.0.0.1:8000"
    assert world.reader.seen == [("", body)]
    await settled(world)
    assert world.in_flight == 0
    assert world.outcomes.told[0].ending is Ending.UNSEEN


async def test_a_request_without_a_body(channel: grpc.aio.Channel) -> None:
    gateway = Gateway(channel)
    await gateway.send(headers(end=True))
    await gateway.call.done_writing()
    assert from_header((await gateway.rest())[0]) == "10.0.0.1:8000"


async def test_an_empty_pool_is_an_immediate_response_and_the_end_of_the_call(
    world: World, channel: grpc.aio.Channel
) -> None:
    world.pool.replace([])
    gateway = Gateway(channel)
    await gateway.send(headers(), request_body(b"{}", end=True))
    await gateway.call.done_writing()
    (answer,) = await gateway.rest()
    assert answer.immediate_response.status.code == 503
