"""Frames are cut the same from any pieces, and gRPC messages too."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError
from epp.extproc.transport.http2.frames import FrameReader, FrameType
from epp.extproc.transport.http2.messages import MessageReader, prefix
from epp.extproc.transport.http2.status import GrpcError, Status

some_frames = st.lists(
    st.tuples(
        st.sampled_from(list(FrameType)), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=300)
    ),
    max_size=6,
)
some_messages = st.lists(st.binary(max_size=300), max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(some_frames, st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent, cuts):
    data = b"".join(frames.frame(*frame) for frame in sent)
    reader = FrameReader(300)
    assert [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)] == sent


def test_every_split_of_a_conversation_gives_the_same_frames():
    sent = [(FrameType.HEADERS, 4, 1, b"abc"), (FrameType.DATA, 0, 1, b""), (FrameType.PING, 1, 0, b"12345678")]
    data = b"".join(frames.frame(*frame) for frame in sent)
    for cut in range(len(data) + 1):
        reader = FrameReader(100)
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == sent
    reader = FrameReader(100)
    assert [frame for byte in data for frame in reader.feed(bytes((byte,)))] == sent


def test_a_frame_above_the_limit_is_refused_by_its_header_alone():
    with pytest.raises(H2ConnectionError) as error:
        list(FrameReader(100).feed(frames.frame_header(FrameType.DATA, 0, 1, 101)))
    assert error.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_the_reserved_bit_of_a_stream_id_is_ignored():
    raw = bytearray(frames.frame(FrameType.DATA, 0, 5, b"x"))
    raw[5] |= 0x80
    assert list(FrameReader(100).feed(bytes(raw))) == [(FrameType.DATA, 0, 5, b"x")]


@given(st.binary(max_size=50), st.integers(0, 255))
def test_padding_is_removed_or_refused(body, size):
    padded = bytes((size,)) + body + bytes(size)
    assert frames.without_padding(padded, frames.PADDED) == body
    if size > len(body):
        with pytest.raises(H2ConnectionError):
            frames.without_padding(bytes((size,)) + body, frames.PADDED)


@given(some_messages, st.lists(st.integers(0, 10_000), max_size=8))
def test_messages_come_out_as_they_went_in_whatever_the_pieces(sent, cuts):
    data = b"".join(prefix(len(message)) + message for message in sent)
    reader = MessageReader(300)
    assert [message for piece in pieces(data, cuts) for message in reader.feed(piece)] == sent
    assert len(reader.partial) == 0


def test_a_message_half_received_is_counted():
    reader = MessageReader(100)
    assert reader.feed(prefix(10) + b"abc") == []
    assert len(reader.partial) == 8
    assert reader.feed(b"defghij" + prefix(1)) == [b"abcdefghij"]
    assert len(reader.partial) == 5


@pytest.mark.parametrize(
    ("start", "status"), [(prefix(101), Status.RESOURCE_EXHAUSTED), (b"\x01\0\0\0\x01", Status.INTERNAL)]
)
def test_messages_too_long_or_compressed_are_refused_by_their_prefix(start, status):
    with pytest.raises(GrpcError) as error:
        MessageReader(100).feed(start)
    assert error.value.status is status
