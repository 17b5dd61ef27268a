"""Whole calls over sockets, with gRPC's C core as the client."""

import asyncio
import gc

import grpc
import grpc.aio
import pytest

from epp.extproc.transport.http2.call import Call
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.stream import Stream
from tests.waiting import until

from .conftest import METHOD, Echo, Serving, calling


async def test_messages_come_back_in_order_on_many_calls_at_once(serving: Serving):
    _, port = await serving()
    async with calling(port) as channel:

        async def talk(number: int) -> None:
            call = channel.stream_stream(METHOD)()
            for size in (0, 1, 100, 70_000, number):
                message = bytes((number,)) * size
                await call.write(message)
                assert await call.read() == message
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK

        await asyncio.gather(*(talk(number) for number in range(50)))


async def test_a_message_far_above_every_window_passes_both_ways(serving: Serving):
    _, port = await serving(Limits(stream_window=65_535, connection_window=65_536))
    async with calling(port, ("grpc.max_receive_message_length", -1)) as channel:
        call = channel.stream_stream(METHOD)()
        message = bytes(range(256)) * 20_000
        await call.write(message)
        assert await call.read() == message


async def test_a_client_that_does_not_read_stops_the_one_call_and_its_reading(echo: Echo, serving: Serving):
    transport, port = await serving(Limits(stream_window=65_535, stream_send_bytes=50_000))
    async with calling(port, ("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)) as channel:
        lazy = channel.stream_stream(METHOD)()
        await lazy.write(b"flood3000")
        await asyncio.sleep(0.3)
        assert transport.status().buffered_bytes < 200_000
        assert echo.ended == []
        call = channel.stream_stream(METHOD)()
        await call.write(b"others notice nothing")
        assert await call.read() == b"others notice nothing"
        for _ in range(3000):
            assert len(await lazy.read()) == 10_000
        assert await lazy.read() == b"flood3000"
        assert transport.status().buffered_bytes == 0


@pytest.mark.parametrize(
    ("message", "code", "details"),
    [
        (b"bad", grpc.StatusCode.INVALID_ARGUMENT, "no ext_proc: 100 % wrong\n"),
        (b"end", grpc.StatusCode.OK, ""),
        (bytes(2000), grpc.StatusCode.RESOURCE_EXHAUSTED, "message of 2000 bytes, 1000 are allowed"),
    ],
)
async def test_how_a_call_ends(serving: Serving, message: bytes, code: grpc.StatusCode, details: str):
    _, port = await serving(Limits(message_bytes=1000))
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"x")
        assert await call.read() == b"x"
        await call.write(message)
        assert (await call.code(), await call.details()) == (code, details)


async def test_a_fault_of_ours_ends_one_call_and_is_logged_once(serving: Serving, capfd: pytest.CaptureFixture[str]):
    _, port = await serving()
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"fault")
        assert await call.code() is grpc.StatusCode.INTERNAL
        call = channel.stream_stream(METHOD)()
        await call.write(b"x")
        assert await call.read() == b"x"
    assert "".join(capfd.readouterr()).count("serving a stream failed") == 1


async def test_an_unknown_method_and_a_compressed_call_are_unimplemented(serving: Serving):
    _, port = await serving()
    async with calling(port) as channel:
        assert await channel.stream_stream("/test.Echo/Other")().code() is grpc.StatusCode.UNIMPLEMENTED
        call = channel.stream_stream(METHOD)(compression=grpc.Compression.Gzip)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "identity" in (await call.details())


async def test_a_deadline_ends_the_call_at_the_server_too(echo: Echo, serving: Serving):
    _, port = await serving()
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)(timeout=0.2)
        await call.write(b"hang")
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: echo.ended == ["CancelledError"])


async def test_a_client_that_leaves_cancels_what_serves_it(echo: Echo, serving: Serving):
    transport, port = await serving()
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"hang")
        await until(lambda: echo.begun == 1)
        call.cancel()
        await until(lambda: echo.ended == ["CancelledError"])
        assert transport.status().open_streams == 0
        call = channel.stream_stream(METHOD)()
        await call.write(b"hang")
        await until(lambda: echo.begun == 2)
    await until(lambda: echo.ended == ["CancelledError"] * 2)


async def test_metadata_of_any_kind_is_taken(serving: Serving):
    _, port = await serving()
    async with calling(port) as channel:
        metadata = (
            ("trace-bin", b"\x00\x01\xff"),
            ("trace-bin", b""),
            ("x", "y" * 20_000),
            ("traceparent", "00-1-2-3"),
        )
        call = channel.stream_stream(METHOD)(metadata=metadata)
        await call.write(b"x")
        assert await call.read() == b"x"


async def test_metadata_above_the_limit_is_refused_and_the_connection_lives(serving: Serving):
    _, port = await serving(Limits(header_bytes=4096))
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)(metadata=(("x", "y" * 5000),))
        assert await call.code() is not grpc.StatusCode.OK
        call = channel.stream_stream(METHOD)()
        await call.write(b"x")
        assert await call.read() == b"x"


async def test_drain_finishes_what_runs_and_takes_nothing_new(serving: Serving):
    transport, port = await serving()
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"x")
        assert await call.read() == b"x"
        drained = asyncio.create_task(transport.drain(30))
        await asyncio.sleep(0.1)
        await call.write(b"still here")
        assert await call.read() == b"still here"
        assert not drained.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await asyncio.wait_for(drained, 10)


async def test_what_outlasts_the_drain_is_cancelled(echo: Echo, serving: Serving):
    transport, port = await serving()
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"hang")
        await until(lambda: echo.begun == 1)
        await transport.drain(0.05)
        assert echo.ended == ["CancelledError"]
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_streams_that_the_gateway_resets_leave_nothing_behind(echo: Echo, serving: Serving):
    _, port = await serving()
    async with calling(port) as channel:
        for _ in range(100):
            call = channel.stream_stream(METHOD)()
            await call.write(b"x")
            assert await call.read() == b"x"
            call.cancel()
        await until(lambda: len(echo.ended) == 100)
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Call | Stream)]
