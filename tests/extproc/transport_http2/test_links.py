"""Sockets that misbehave: too many, too quiet, too slow."""

import asyncio
import gc
import socket
import sys
from itertools import islice

import grpc

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode
from epp.extproc.transport.http2.frames import Frame, FrameReader, FrameType
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.metrics import Http2Metrics
from tests.waiting import until

from .conftest import METHOD, Echo, Serving, calling
from .peer import REQUEST, Peer, data, goaway_code, kinds

GREETING = frames.PREFACE + frames.settings({}) + frames.frame(FrameType.SETTINGS, frames.ACK, 0)


async def read_to_the_end(reader: asyncio.StreamReader, before: bytes = b"") -> list[Frame]:
    return list(FrameReader(1 << 24).feed(before + await asyncio.wait_for(reader.read(), 15)))


def counted(metrics: Http2Metrics, what: str, **labels: str) -> float | None:
    name = f"epp_http2_connections_{what}_total"
    return metrics.registry.get_sample_value(name, labels)


async def test_a_connection_too_many_is_closed_and_the_first_lives(serving: Serving):
    transport, port = await serving(Limits(connections=1))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING)
    await reader.readexactly(9)
    late, late_writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        assert await late.read() == b""
    except ConnectionResetError:
        pass
    writer.write(frames.frame(FrameType.PING, 0, 0, b"12345678"))
    assert (await reader.readuntil(b"12345678"))[-17:-8] == b"\0\0\x08\x06\x01\0\0\0\0"
    assert transport.status().connections == 1
    assert counted(transport.metrics, "refused") == 1
    for each in (writer, late_writer):
        each.close()


async def test_who_never_greets_is_sent_away(serving: Serving):
    transport, port = await serving(Limits(handshake_seconds=0.2))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frames.PREFACE[:10])
    assert goaway_code(await read_to_the_end(reader)) is ErrorCode.SETTINGS_TIMEOUT
    writer.close()
    await until(lambda: counted(transport.metrics, "broken", code="settings_timeout") == 1)


async def test_the_last_words_reach_a_peer_that_was_still_talking(serving: Serving):
    """A close with unread bytes would be a TCP reset, and the GOAWAY lost."""
    transport, port = await serving()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING + frames.frame(FrameType.PING, 0, 0, b"short"))
    first = await reader.readexactly(1)
    for _ in range(20):
        writer.write(frames.frame(FrameType.PING, 0, 0, b"12345678"))
        await asyncio.sleep(0)
    assert goaway_code(await read_to_the_end(reader, first)) is ErrorCode.FRAME_SIZE_ERROR
    writer.close()
    await until(lambda: transport.status().connections == 0)


async def test_a_peer_that_stays_after_the_end_is_hung_up_on(serving: Serving):
    transport, port = await serving()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING + frames.frame(FrameType.PING, 0, 0, b"short"))
    await read_to_the_end(reader)
    await until(lambda: transport.status().connections == 0)
    writer.close()


async def test_an_idle_connection_is_closed_in_good_order(serving: Serving):
    _, port = await serving(Limits(idle_seconds=0.2))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING)
    answers = await read_to_the_end(reader)
    assert kinds(answers)[-3:] == ["GOAWAY", "PING", "GOAWAY"]
    assert goaway_code(answers) is ErrorCode.NO_ERROR
    writer.close()


async def test_an_old_connection_is_asked_to_end(serving: Serving):
    _, port = await serving(Limits(age_seconds=0.2))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING)
    assert goaway_code(await read_to_the_end(reader)) is ErrorCode.NO_ERROR
    writer.close()


async def test_a_silent_peer_is_pinged_and_then_given_up(echo: Echo, serving: Serving):
    _, port = await serving(Limits(keepalive_seconds=1.0))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = [*REQUEST[:2], (":path", METHOD), *REQUEST[3:]]
    writer.write(GREETING + Peer().headers(1, fields) + data(1, b"\0\0\0\0\x04hang"))
    await until(lambda: echo.begun == 1)
    answers: list[Frame] = []
    cut = FrameReader(1 << 24)
    try:
        while received := await asyncio.wait_for(reader.read(1000), 15):
            answers += cut.feed(received)
    except ConnectionResetError:
        pass
    assert "PING" in kinds(answers)
    await until(lambda: echo.ended == ["CancelledError"])
    writer.close()


async def test_a_peer_that_reads_nothing_is_given_up_and_costs_bounded_memory(echo: Echo, serving: Serving):
    transport, port = await serving(Limits(stall_seconds=0.5, stream_send_bytes=100_000))
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", port))
        fields = [*REQUEST[:2], (":path", METHOD), *REQUEST[3:]]
        wide = frames.settings({frames.SettingCode.INITIAL_WINDOW_SIZE: 2**31 - 1})
        message = b"flood100000"
        raw.sendall(GREETING + wide + frames.window_update(0, 2**30) + Peer().headers(1, fields))
        raw.sendall(data(1, b"\0\0\0\0" + bytes((len(message),)) + message))
        await until(lambda: echo.begun == 1)
        await asyncio.sleep(0.2)
        assert transport.status().buffered_bytes < 300_000
        await until(lambda: transport.status().connections == 0)
        await until(lambda: echo.ended == ["CancelledError"])


async def test_a_peer_that_pings_and_reads_nothing_is_cut_off(serving: Serving):
    transport, port = await serving(Limits(unread_control_bytes=10_000))
    ping = frames.frame(FrameType.PING, 0, 0, b"12345678") * 1000
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", port))
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(raw, GREETING)
            for _ in range(1000):
                await asyncio.wait_for(loop.sock_sendall(raw, ping), 5)
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            pass
        await until(lambda: transport.status().connections == 0)


async def test_a_browser_is_told_what_this_port_is(serving: Serving):
    _, port = await serving()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")]
    writer.write(GREETING + Peer().headers(1, get, end=True) + frames.goaway(0, ErrorCode.NO_ERROR))
    answers = await read_to_the_end(reader)
    assert b"application/grpc" in b"".join(payload for kind, _, _, payload in answers if kind == FrameType.DATA)
    writer.close()


async def test_a_writer_too_slow_loses_its_stream_and_others_notice_nothing(echo: Echo, serving: Serving):
    transport, port = await serving(Limits(stall_seconds=1.0))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer(greet=False)
    writer.write(GREETING + peer.headers(1, [*REQUEST[:2], (":path", METHOD), *REQUEST[3:]]))

    async def drip() -> None:
        for byte in b"\0\0\0\x10\0" + bytes(4096):
            writer.write(data(1, bytes((byte,))))
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    async with calling(port) as channel:
        call = channel.stream_stream(METHOD)()
        while echo.ended != ["CancelledError"]:
            await call.write(b"x")
            assert await call.read() == b"x"
            await asyncio.sleep(0.05)
        assert transport.status().buffered_bytes == 0
        dripping.cancel()
        got = await reader.readuntil(frames.rst_stream(1, ErrorCode.CANCEL))
        assert goaway_code(list(FrameReader(1 << 24).feed(got))) is None
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    writer.close()


async def test_streams_that_their_client_resets_leave_not_one_block_behind(echo: Echo, serving: Serving):
    """Counted by the allocator, so that not even a byte for each stream could hide."""
    transport, port = await serving()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer(greet=False)
    head = [*REQUEST[:2], (":path", METHOD), *REQUEST[3:]]
    writer.write(GREETING)
    ids = iter(range(1, 1 << 30, 2))

    async def reset_streams(count: int) -> int:
        ended = len(echo.ended)
        for number in islice(ids, count):
            writer.write(peer.headers(number, head) + data(number, b"\0\0\0\0\x01x"))
            await reader.readuntil(b"\0\0\0\0\x01x")
            writer.write(frames.rst_stream(number, ErrorCode.CANCEL))
        await until(lambda: len(echo.ended) == ended + count)
        echo.ended.clear()
        gc.collect()
        return sys.getallocatedblocks()

    await reset_streams(1500)  # more than the ended streams that are remembered
    before = await reset_streams(1500)
    after = await reset_streams(3000)
    assert after - before < 100
    assert transport.status().open_streams == 0
    writer.close()
