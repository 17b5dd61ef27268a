"""Reads large msgpack documents in short steps, so that what else waits for the event loop goes between them.

A step visits at most `_ITEMS` items. msgspec reads what lies between two steps; only the lengths are read here.
"""

from collections.abc import Generator
from typing import Any

import msgspec

_LARGE = 65_536
"""Bytes up to which a document is read at once, in about a millisecond."""
_ITEMS = 2048
_DEEPEST = 16
"""Levels of nesting in a large document."""

_CONTAINERS = frozenset([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_NUMBERS = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9, 0xCA: 5, 0xCB: 9}
_EXTENSIONS = {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
_SHORT_TEXTS = {0xA0 + length: 1 + length for length in range(32)}
_FIXED = dict.fromkeys([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3], 1) | _NUMBERS | _EXTENSIONS | _SHORT_TEXTS
"""First byte -> bytes of the whole item."""
_PREFIXED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
"""First byte -> bytes of the length behind it; an extension (0xC7 to 0xC9) has its type behind that."""

_decode = msgspec.msgpack.Decoder().decode


def unpack(document: bytes) -> Generator[None, None, Any]:
    """The value of a msgpack document; pauses while it is read.

    Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError for what is none.
    """
    if len(document) <= _LARGE:
        return _decode(document)
    try:
        value, end = yield from _value(document, 0, 0)
    except IndexError:
        raise msgspec.DecodeError("the document is cut short") from None
    if end != len(document):
        raise msgspec.DecodeError("more than one document")
    return value


def _value(data: bytes, at: int, depth: int) -> Generator[None, None, tuple[Any, int]]:
    """The value at `at`, and where it ends."""
    whole, end = _run(data, at, 1)
    if whole:
        return _decode(memoryview(data)[at:end]), end
    yield
    if depth == _DEEPEST:
        raise RecursionError
    items, at, is_map = _head(data, at)
    values, at = yield from _values(data, at, 2 * items if is_map else items, depth + 1)
    if not is_map:
        return values, at
    try:
        return dict(zip(values[::2], values[1::2], strict=True)), at
    except TypeError:
        raise msgspec.DecodeError("a key that cannot be one") from None


def _values(data: bytes, at: int, count: int, depth: int) -> Generator[None, None, tuple[list[Any], int]]:
    """So many values that follow each other."""
    values: list[Any] = []
    while len(values) < count:
        whole, end = _run(data, at, count - len(values))
        if whole:
            values += _decode(b"\xdc" + whole.to_bytes(2, "big") + data[at:end])
            at = end
        else:
            value, at = yield from _value(data, at, depth)
            values.append(value)
        yield
    return values, at


def _run(data: bytes, at: int, most: int) -> tuple[int, int]:
    """How many whole values, at most `most`, one step can read from `at` on, and where they end."""
    values, end, left = 0, at, 1
    for _ in range(_ITEMS):
        tag = data[at]
        size = _FIXED.get(tag)
        if size is not None:
            at += size
        elif tag in _CONTAINERS:
            items, at, is_map = _head(data, at)
            left += 2 * items if is_map else items
        else:
            at += _prefixed(data, at)
        left -= 1
        if not left:
            values, end, left = values + 1, at, 1
            if values == most:
                break
    return values, end


def _prefixed(data: bytes, at: int) -> int:
    """Bytes of the text, bytes or extension at `at`, which begin with their length."""
    width = _PREFIXED.get(data[at])
    if width is None:
        raise msgspec.DecodeError("no msgpack")
    is_extension = 0xC7 <= data[at] <= 0xC9
    return 1 + width + is_extension + int.from_bytes(data[at + 1 : at + 1 + width], "big")


def _head(data: bytes, at: int) -> tuple[int, int, bool]:
    """Items of the container at `at`, where they begin, and whether it is a map."""
    tag = data[at]
    if tag < 0xA0:
        return tag & 0x0F, at + 1, tag < 0x90
    width = 2 if tag in (0xDC, 0xDE) else 4
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width, tag >= 0xDE
