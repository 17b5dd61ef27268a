"""Large documents are read in short steps, and come out as if they had been read at once."""

from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kvcache import unpacking
from epp.kvcache.unpacking import unpack

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=60,
)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_LARGE", 0)
    monkeypatch.setattr(unpacking, "_ITEMS", 5)


def whole(steps: Generator[None, None, Any]) -> Any:
    """The value, and after how many pauses it came."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@given(values)
def test_it_is_what_was_packed(value):
    document = msgspec.msgpack.encode(value)
    assert whole(unpack(document))[0] == value


@given(values, st.data())
def test_what_is_cut_short_or_goes_on_is_refused(value, data):
    document = msgspec.msgpack.encode(value)
    cut = data.draw(st.integers(0, len(document) - 1))
    for wrong in (document[:cut], document + b"\xc0"):
        with pytest.raises(msgspec.DecodeError):
            whole(unpack(wrong))


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(document):
    try:
        expected = msgspec.msgpack.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
            whole(unpack(document))
    else:
        assert repr(whole(unpack(document))[0]) == repr(expected)


def test_extensions_and_keys_of_other_types_are_read_too():
    for value in (msgspec.msgpack.Ext(5, b"x" * 7), {1: list(range(9)), b"k": 2.5, None: {}}):
        assert whole(unpack(msgspec.msgpack.encode(value)))[0] == value


def test_no_nesting_is_too_deep_to_refuse():
    with pytest.raises(RecursionError):
        whole(unpack(b"\x91" * 100_000 + b"\xc0"))


def test_it_pauses_often():
    _, pauses = whole(unpack(msgspec.msgpack.encode([1, [[i, 2, 3] for i in range(40)], list(range(1000))])))
    assert pauses > 200
