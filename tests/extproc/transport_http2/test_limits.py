"""Hostile and greedy peers: each loses its stream or its connection with the right code, and costs bounded memory."""

from dataclasses import dataclass

import pytest

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode
from epp.extproc.transport.http2.frames import END_HEADERS, FrameType, frame
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.memory import Memory

from .peer import REQUEST, Peer, Recorder, body_of, data, goaway_code, reset_codes, windows_of

SMALL = Limits(
    streams=5,
    control_frames_per_second=20,
    early_resets_per_second=10,
    stream_window=1000,
    connection_window=70_000,
    stream_send_bytes=1000,
    connection_buffer_bytes=5000,
)


def send_until_refused(peer: Peer, piece, *, at_most: int) -> int:
    """How many times `piece` is taken before the connection ends; its ways out are kept empty."""
    for count in range(at_most):
        if peer.connection.fault is not None:
            return count
        peer.send(piece(count) if callable(piece) else piece)
        peer.answers()
    raise AssertionError("never refused")


@pytest.mark.parametrize(
    "piece",
    [
        frames.settings({}),
        frame(FrameType.SETTINGS, frames.ACK, 0),
        frame(FrameType.PING, 0, 0, b"12345678"),
        frame(FrameType.PING, frames.ACK, 0, b"12345678"),
        frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\0\7"),
        data(1),
        frame(FrameType.DATA, frames.PADDED, 1, b"\x03\0\0\0"),
        frames.window_update(0, 1),
        frames.window_update(1, 1),
        b"\0\0\0\xee\0\0\0\0\1",
        frames.goaway(0, ErrorCode.NO_ERROR),
    ],
)
def test_a_flood_of_frames_that_move_no_data_ends_the_connection(piece):
    peer = Peer(SMALL)
    peer.open(1)
    assert send_until_refused(peer, piece, at_most=100) <= SMALL.control_burst + 1
    assert peer.connection.fault is not None
    assert peer.connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_the_same_frames_at_a_measured_pace_are_fine():
    peer = Peer(SMALL)
    for _ in range(500):
        peer.now += 1 / SMALL.control_frames_per_second
        peer.send(frame(FrameType.PING, 0, 0, b"12345678"))
        assert len(peer.answers()) == 1


def test_rapid_reset_ends_the_connection():
    peer = Peer(SMALL)
    count = send_until_refused(
        peer,
        lambda n: peer.headers(2 * n + 1) + frames.rst_stream(2 * n + 1, ErrorCode.CANCEL),
        at_most=100,
    )
    assert count <= SMALL.reset_burst + 1
    assert peer.connection.fault is not None
    assert peer.connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_resets_after_the_answer_are_what_gateways_do_and_never_refused():
    peer = Peer(SMALL)
    for n in range(1000):
        call = peer.open(2 * n + 1)
        peer.respond(call.stream, b"x", end=n % 2 == 0)
        peer.answers()
        peer.send(frames.rst_stream(2 * n + 1, ErrorCode.CANCEL))
        peer.send(frames.window_update(0, 1))
    assert peer.connection.fault is None
    assert not peer.connection.streams


def test_resets_that_the_peer_provokes_are_counted_too():
    peer = Peer(SMALL)
    malformed = [field for field in REQUEST if field[0] != ":path"]
    send_until_refused(peer, lambda n: peer.headers(2 * n + 1, malformed), at_most=100)


def test_a_limit_counts_once_the_peer_has_acknowledged_it():
    peer = Peer(SMALL, greet=False)
    peer.send(frames.PREFACE, frames.settings({}))
    for n in range(8):
        peer.send(peer.headers(2 * n + 1))
    assert reset_codes(peer.answers()) == []
    peer.send(frame(FrameType.SETTINGS, frames.ACK, 0), peer.headers(17))
    assert reset_codes(peer.answers()) == [(17, ErrorCode.REFUSED_STREAM)]


def test_who_never_acknowledges_gets_no_endless_number_of_streams():
    peer = Peer(SMALL, greet=False)
    peer.send(frames.PREFACE, frames.settings({}))
    for n in range(1025):
        peer.send(peer.headers(2 * n + 1))
    assert reset_codes(peer.answers()) == [(2049, ErrorCode.REFUSED_STREAM)]


def test_a_stream_above_the_limit_is_refused_and_the_others_live():
    peer = Peer(SMALL)
    calls = [peer.open(2 * n + 1) for n in range(5)]
    peer.send(peer.headers(11))
    assert reset_codes(peer.answers()) == [(11, ErrorCode.REFUSED_STREAM)]
    assert all(call.told == [] for call in calls)
    peer.respond(calls[0].stream)
    peer.answers()
    peer.open(13)
    assert reset_codes(peer.answers()) == []


def test_a_header_block_without_end_ends_the_connection():
    peer = Peer(SMALL)
    peer.send(frame(FrameType.HEADERS, 0, 1, b""))
    send_until_refused(peer, frame(FrameType.CONTINUATION, 0, 1, b""), at_most=100)
    peer = Peer(Limits(header_bytes=4096))
    peer.send(frame(FrameType.HEADERS, 0, 1, b""))
    assert send_until_refused(peer, frame(FrameType.CONTINUATION, 0, 1, bytes(4000)), at_most=10) <= 3


def test_a_bomb_of_headers_ends_the_connection():
    peer = Peer(Limits(header_bytes=4096))
    entry = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
    peer.send(frame(FrameType.HEADERS, END_HEADERS, 1, entry + b"\xbe" * 10_000))
    assert goaway_code(peer.answers()) is ErrorCode.ENHANCE_YOUR_CALM


def test_more_data_than_the_window_ends_the_stream_or_the_connection():
    peer = Peer(SMALL)
    call = peer.open(1)
    call.stream.held = 1000
    peer.send(data(1, bytes(1000)))
    peer.send(data(1, b"x"))
    assert reset_codes(peer.answers()) == [(1, ErrorCode.FLOW_CONTROL_ERROR)]
    peer = Peer(SMALL, memory=Memory(0))
    peer.memory.used = 1
    peer.connection.memory.used = 1
    for n in range(5):
        peer.open(2 * n + 1)
    send_until_refused(peer, lambda n: data(1 + 2 * (n % 5), bytes(500)), at_most=1000)
    assert peer.connection.fault is not None
    assert peer.connection.fault.code is ErrorCode.FLOW_CONTROL_ERROR


def test_the_window_of_a_stream_stays_shut_while_nobody_reads_it():
    peer = Peer(SMALL)
    call = peer.open(1)
    peer.send(data(1, bytes(600)))
    assert windows_of(peer.answers(), 1) == 600
    call.stream.held = 700
    peer.send(data(1, bytes(700)))
    assert windows_of(peer.answers(), 1) == 0
    call.stream.held = 0
    peer.connection.settle(call.stream)
    assert windows_of(peer.answers(), 1) == 700


def test_the_window_of_the_connection_stays_shut_while_too_much_is_held():
    peer = Peer(Limits(connection_window=70_000, connection_buffer_bytes=30_000))
    call = peer.open(1)
    call.stream.held = 40_000
    for _ in range(4):
        peer.send(data(1, bytes(10_000)))
    assert peer.connection.memory.full
    assert windows_of(peer.answers(), 0) == 0
    call.stream.held = 0
    peer.connection.settle(call.stream)
    assert not peer.connection.memory.full
    assert windows_of(peer.answers(), 0) == 40_000


def test_a_peer_that_opens_no_window_gets_what_fits_and_the_rest_is_counted():
    peer = Peer(SMALL)
    calls = [peer.open(1), peer.open(3)]
    for call in calls:
        call.stream.wants_room = True
        peer.respond(call.stream, b"x" * 50_000)
    answers = peer.answers()
    assert len(body_of(answers, 1)) + len(body_of(answers, 3)) == 65_535
    assert peer.memory.used == 100_000 - 65_535
    peer.send(frames.window_update(0, 100_000))
    answers = peer.answers()
    assert len(body_of(answers, 1)) + len(body_of(answers, 3)) == 100_000 - 65_535
    assert peer.memory.used == 0
    assert all(call.told == ["writable"] for call in calls)
    assert not peer.connection.streams


def test_streams_take_turns():
    peer = Peer()
    peer.send(frames.settings({frames.SettingCode.INITIAL_WINDOW_SIZE: 10**7}), frames.window_update(0, 10**7))
    calls = [peer.open(1), peer.open(3)]
    for call in calls:
        peer.respond(call.stream, b"x" * 10**6)
    peer.answers(0)
    answers = peer.answers(400_000)
    sizes = [len(body_of(answers, 1)), len(body_of(answers, 3))]
    assert max(sizes) - min(sizes) <= 65_536
    assert min(sizes) > 150_000


def test_a_stream_whose_answers_nobody_takes_is_reset():
    peer = Peer(SMALL)
    call = peer.open(1)
    peer.respond(call.stream, b"x" * 70_000)
    peer.answers()
    peer.now = 10
    peer.send(frames.window_update(0, 10), frames.window_update(1, 10))
    peer.answers()
    peer.connection.tend(stalled_since=9)
    assert call.told == []
    peer.connection.tend(stalled_since=11)
    assert reset_codes(peer.answers()) == [(1, ErrorCode.CANCEL)]
    assert (call.told, peer.memory.used) == (["closed"], 0)
    peer.now = 100
    peer.connection.tend(stalled_since=100)
    assert peer.answers() == []


def test_all_is_given_back_when_the_connection_goes():
    peer = Peer(SMALL)
    peer.respond(peer.open(1).stream, b"x" * 70_000)
    call = peer.open(3)
    call.stream.held, call.stream.partial = 300, 20
    peer.send(data(3, b"x"))
    peer.answers()
    assert peer.memory.used == 70_000 - 65_535 + 320
    peer.connection.abandon()
    assert peer.memory.used == 0
    assert [call.told for call in peer.received] == [["closed"], ["closed"]]


@dataclass
class Dripped(Recorder):
    """Says what a call says: how much of a message is there. Ends in `;` what is whole."""

    def data(self, payload: bytes) -> None:
        super().data(payload)
        self.stream.partial = len(self.body.rpartition(b";")[2])


def test_a_message_that_is_never_whole_ends_its_stream():
    peer = Peer(SMALL)
    calls = [peer.open(1), peer.open(3)]
    slow, steady = [Dripped(call.stream, call.head) for call in calls]
    slow.stream.receiver, steady.stream.receiver = slow, steady
    for peer.now in range(10, 20):
        peer.send(data(1, b"x"), data(3, b"x;yy"))
    peer.connection.tend(stalled_since=10)
    assert (slow.told, steady.told) == ([], [])
    peer.connection.tend(stalled_since=11)
    assert (slow.told, steady.told) == (["closed"], [])
    assert reset_codes(peer.answers()) == [(1, ErrorCode.CANCEL)]
    peer.connection.abandon()
    assert peer.memory.used == 0
