"""The state machine by RFC 9113; h2spec tries the same from outside, on sockets."""

import pytest

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode
from epp.extproc.transport.http2.frames import ACK, END_HEADERS, END_STREAM, FrameType, SettingCode, frame
from epp.extproc.transport.http2.limits import Limits

from .peer import END, HEAD, REQUEST, Peer, body_of, data, goaway_code, kinds, reset_codes, windows_of


def test_the_greeting_announces_the_limits_and_acknowledges_the_peer():
    peer = Peer(Limits(streams=7, header_bytes=5000, stream_window=100_000, connection_window=200_000), greet=False)
    peer.send(frames.PREFACE, frames.settings({SettingCode.INITIAL_WINDOW_SIZE: 10}))
    settings, window, ack = peer.answers()
    assert dict(frames.settings_in(settings[3])) == {3: 7, 4: 100_000, 6: 5000}
    assert windows_of([window], 0) == 200_000 - 65_535
    assert ack == (FrameType.SETTINGS, ACK, 0, b"")
    assert not peer.connection.ready
    peer.send(frame(FrameType.SETTINGS, ACK, 0))
    assert peer.connection.ready


def test_every_split_of_a_whole_exchange_is_the_same_exchange():
    def talk() -> bytes:
        peer = Peer(greet=False)
        return b"".join(
            (
                frames.PREFACE,
                frames.settings({}),
                frame(FrameType.SETTINGS, ACK, 0),
                peer.headers(1),
                data(1, b"abc"),
                data(1, b"", end=True),
                frame(FrameType.PING, 0, 0, b"12345678"),
            )
        )

    whole = talk()
    for cut in range(len(whole) + 1):
        peer = Peer(greet=False)
        peer.send(whole[:cut])
        peer.send(whole[cut:])
        (call,) = peer.received
        assert (call.body, call.told, call.head.path) == (b"abc", ["half_closed"], b"/x")
        assert kinds(peer.answers()) == ["SETTINGS", "WINDOW_UPDATE", "SETTINGS", "PING"]


def test_a_response_is_headers_body_and_trailers_and_the_stream_is_over():
    peer = Peer()
    call = peer.open(end=True)
    peer.respond(call.stream, b"ab", b"cd")
    assert peer.answers() == [
        (FrameType.HEADERS, END_HEADERS, 1, HEAD),
        (FrameType.DATA, 0, 1, b"abcd"),
        (FrameType.HEADERS, END_HEADERS | END_STREAM, 1, END),
    ]
    assert not peer.connection.streams
    assert call.told == ["half_closed"]


def test_an_answer_before_the_end_of_the_request_tells_the_peer_to_stop():
    peer = Peer()
    call = peer.open()
    peer.respond(call.stream)
    assert reset_codes(peer.answers()) == [(1, ErrorCode.NO_ERROR)]
    # What crosses the end does no harm.
    peer.send(data(1, b"late"), frames.rst_stream(1, ErrorCode.CANCEL), frames.window_update(1, 5))
    peer.send(peer.headers(1, [("a", "b")], end=True))
    assert peer.answers() == []
    assert peer.connection.fault is None


def test_padding_priority_continuation_and_unknown_frames_are_understood():
    peer = Peer()
    block = peer.encoder.encode(list(REQUEST))
    flags = frames.PADDED | frames.PRIORITY
    peer.send(
        frame(FrameType.PRIORITY, 0, 9, b"\0\0\0\1\7"),
        frame(FrameType.HEADERS, flags, 1, b"\x02" + b"\x80\0\0\3\7" + block[:4] + b"\0\0"),
        frame(FrameType.CONTINUATION, 0, 1, block[4:9]),
        frame(FrameType.CONTINUATION, END_HEADERS, 1, block[9:]),
        b"\0\0\3\xee\xff\0\0\0\1abc",
        frame(FrameType.DATA, frames.PADDED | END_STREAM, 1, b"\x03abc\0\0\0"),
    )
    (call,) = peer.received
    assert (call.head.path, call.body, call.told) == (b"/x", b"abc", ["half_closed"])
    assert peer.answers() == []


def test_trailers_of_the_request_end_it():
    peer = Peer()
    call = peer.open()
    peer.send(peer.headers(1, [("x-sum", "1")], end=True))
    assert call.told == ["half_closed"]


def test_a_reset_stream_is_gone_and_others_stay():
    peer = Peer()
    first, second = peer.open(1), peer.open(3)
    peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    assert (first.told, second.told) == (["closed"], [])
    assert list(peer.connection.streams) == [3]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (lambda peer: data(1), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: data(0), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.rst_stream(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.window_update(1, 1), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (lambda peer: frame(FrameType.WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (lambda peer: peer.headers(2), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: peer.headers(0), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: peer.headers(5) + peer.headers(3), ErrorCode.PROTOCOL_ERROR),
        (
            lambda peer: peer.headers(1) + frames.rst_stream(1, ErrorCode.CANCEL) + peer.headers(1),
            ErrorCode.STREAM_CLOSED,
        ),
        (lambda peer: frame(FrameType.CONTINUATION, END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
        (
            lambda peer: frame(FrameType.HEADERS, 0, 1) + frame(FrameType.PING, 0, 0, b"12345678"),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (lambda peer: frame(FrameType.HEADERS, 0, 1) + frame(FrameType.CONTINUATION, 4, 3), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.HEADERS, frames.PRIORITY | 4, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (lambda peer: frame(FrameType.HEADERS, frames.PADDED | 4, 1, b"\x09\x82"), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.PRIORITY, 0, 0, b"\0\0\0\1\7"), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (lambda peer: frame(FrameType.SETTINGS, ACK, 0, b"123456"), ErrorCode.FRAME_SIZE_ERROR),
        (lambda peer: frames.settings({SettingCode.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.settings({SettingCode.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (lambda peer: frames.settings({SettingCode.MAX_FRAME_SIZE: 100}), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.PUSH_PROMISE, 4, 1, b"\0\0\0\2"), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.PING, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
        (lambda peer: frame(FrameType.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (lambda peer: frame(FrameType.DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_broken_rule_ends_the_connection_with_its_code(sent, code):
    peer = Peer()
    peer.send(sent(peer))
    assert goaway_code(peer.answers()) is code
    assert peer.connection.over
    peer.send(peer.headers(101))
    assert peer.answers() == []


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFACE + frame(FrameType.PING, 0, 0, b"12345678"),
        frames.PREFACE + frame(FrameType.SETTINGS, ACK, 0),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
)
def test_who_does_not_begin_as_http2_does_is_sent_away(hello):
    peer = Peer(greet=False)
    peer.send(hello)
    assert goaway_code(peer.answers()) is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (lambda peer: data(1, b"", end=True) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (lambda peer: data(1, b"", end=True) + peer.headers(1, [("a", "b")], end=True), ErrorCode.STREAM_CLOSED),
        (lambda peer: peer.headers(1, [("a", "b")]), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: peer.headers(1, [(":path", "/")], end=True), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frames.window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (lambda peer: frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\1\7"), ErrorCode.PROTOCOL_ERROR),
        (lambda peer: frame(FrameType.PRIORITY, 0, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_mistake_on_a_stream_ends_that_stream_only(sent, code):
    peer = Peer()
    call = peer.open(1)
    peer.send(sent(peer))
    assert reset_codes(peer.answers()) == [(1, code)]
    assert call.told[-1] == "closed"
    assert peer.open(3).told == []


@pytest.mark.parametrize("body", [b"ab", b"abcd"])
def test_a_body_of_another_size_than_its_content_length_is_malformed(body):
    peer = Peer()
    peer.send(peer.headers(1, [*REQUEST, ("content-length", "3")]), data(1, body, end=True))
    assert reset_codes(peer.answers()) == [(1, ErrorCode.PROTOCOL_ERROR)]


def test_settings_change_the_windows_of_open_streams():
    peer = Peer()
    call = peer.open()
    peer.respond(call.stream, b"x" * 100_000)
    peer.send(frames.window_update(0, 1_000_000))
    assert len(body_of(peer.answers(), 1)) == 65_535
    peer.send(frames.settings({SettingCode.INITIAL_WINDOW_SIZE: 0}))
    assert len(body_of(peer.answers(), 1)) == 0
    peer.send(frames.window_update(1, 65_535 + 10))
    assert len(body_of(peer.answers(), 1)) == 10
    peer.send(frames.settings({SettingCode.INITIAL_WINDOW_SIZE: 1_000_000}))
    answers = peer.answers()
    assert len(body_of(answers, 1)) == 100_000 - 65_545
    assert answers[-2][:2] == (FrameType.HEADERS, END_HEADERS | END_STREAM)


def test_frames_are_as_large_as_the_peer_takes_them():
    peer = Peer()
    peer.send(frames.settings({SettingCode.MAX_FRAME_SIZE: 50_000, SettingCode.INITIAL_WINDOW_SIZE: 10**6}))
    peer.send(frames.window_update(0, 10**6))
    peer.answers()
    call = peer.open(end=True)
    peer.respond(call.stream, b"x" * 30_000, b"y" * 30_000)
    assert [len(payload) for kind, _, _, payload in peer.answers() if kind == 0] == [50_000, 10_000]


def test_drain_serves_what_crossed_it_and_nothing_later():
    peer = Peer()
    first = peer.open(1)
    peer.connection.drain()
    goaway, ping = peer.answers()
    assert (goaway[0], goaway[3][:4], ping[0]) == (FrameType.GOAWAY, b"\x7f\xff\xff\xff", FrameType.PING)
    crossed = peer.open(3)
    peer.send(frame(FrameType.PING, ACK, 0, ping[3]))
    (final,) = peer.answers()
    assert final[3] == b"\0\0\0\3\0\0\0\0"
    peer.send(peer.headers(5), data(5, b"x", end=True))
    assert len(peer.received) == 2
    assert peer.connection.fault is None
    for call in (first, crossed):
        assert not peer.connection.over
        peer.respond(call.stream)
        peer.answers()
    assert peer.connection.over


def test_a_peer_that_goes_away_gets_its_answers():
    peer = Peer()
    call = peer.open()
    peer.send(frames.goaway(0, ErrorCode.NO_ERROR))
    assert not peer.connection.over
    peer.respond(call.stream, b"x")
    assert body_of(peer.answers(), 1) == b"x"
    assert peer.connection.over
