"""Versions that meet understand each other; whatever else comes is refused, never a crash."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.peers.wire import Beat, Heard, Message, Row, SentPrompt, Tie, WireError, decode, encode

DATA = Path(__file__).parents[1] / "data" / "peers"


def message() -> Message:
    row = Row(7, 2**64 - 1, 100, 200, 5000, 0, False, True, 6)
    beat = Beat(3, "pod-a/1", "0.1.0", 1, 7, (Heard(9, 2, 400),), False)
    sent = SentPrompt(2**64 - 1, bytes(16))
    return Message(
        3,
        42,
        5,
        (row,),
        (1, 2),
        (0, 7),
        beat,
        (9,),
        1000,
        (sent,),
        b"secret's name",
        (Tie(2**64 - 1, 8),),
        (Tie(9, 8),),
    )


def test_a_message_comes_back_as_it_was():
    assert decode(encode(message())) == message()


@pytest.mark.parametrize(("version", "lacks"), [(1, {"picks": 0}), (2, {})])
def test_what_older_versions_wrote_is_still_read(version: int, lacks: dict[str, int]):
    read = decode((DATA / f"message-v{version}.msgpack").read_bytes())
    assert read == msgspec.structs.replace(
        message(), version=version, prompts=(), secret=b"", sessions=(), failed=(), **lacks
    )


def test_what_a_later_version_appends_is_ignored():
    plain = msgspec.msgpack.decode(encode(message()))
    plain[0] = 9
    plain.append({"new": 1})
    plain[3][0].append("more of a row")
    plain[6].append(b"more of a beat")
    read = decode(msgspec.msgpack.encode(plain))
    assert read == msgspec.structs.replace(message(), version=9)


def test_what_an_older_version_did_not_have_has_a_default():
    assert decode(msgspec.msgpack.encode([1, 42, 5])) == Message(1, 42, 5)


@given(st.binary(max_size=200))
def test_junk_is_refused(junk: bytes):
    try:
        decode(junk)
    except WireError:
        return
    decode(junk)  # by chance it was a message


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_damaged_message_is_refused_or_is_a_message(at: int, change: int):
    data = bytearray(encode(message()))
    data[at % len(data)] ^= change
    try:
        assert isinstance(decode(bytes(data)), Message)
    except WireError:
        pass


@pytest.mark.parametrize("field", [2, 3, 4])
def test_numbers_out_of_bounds_are_refused(field: int):
    plain = msgspec.msgpack.decode(encode(message()))
    plain[3][0][field] = 2**60
    with pytest.raises(WireError):
        decode(msgspec.msgpack.encode(plain))
