"""HTTP/2 frames (RFC 9113 sections 4 and 6): cut from bytes, and made."""

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum

from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MIN_MAX_FRAME_SIZE = 16_384
MAX_WINDOW = 2**31 - 1

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream id, payload."""

_HEADER = struct.Struct(">HBBBI")
_HEADER_SIZE = 9
_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class FrameType(IntEnum):
    """The types that RFC 9113 defines; all others are ignored."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class SettingCode(IntEnum):
    """The settings that matter here (RFC 9113 6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class FrameReader:
    """Cuts a connection's bytes into frames, whatever pieces they come in; keeps less than one frame."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes. Raises H2ConnectionError for one above the size limit."""
        if self._rest:
            data = self._rest + data
        start, end = 0, len(data)
        self._rest = b""
        while end - start >= _HEADER_SIZE:
            high, low, kind, flags, stream_id = _HEADER.unpack_from(data, start)
            size = high << 8 | low
            if size > self._max_size:
                raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes")
            after = start + _HEADER_SIZE + size
            if after > end:
                break
            payload = data[start + _HEADER_SIZE : after]
            start = after
            yield kind, flags, stream_id & MAX_WINDOW, payload
        self._rest = data[start:] if start else data


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def frame_header(kind: FrameType, flags: int, stream_id: int, size: int) -> bytes:
    """The nine bytes before a payload of `size` bytes."""
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def settings(values: Mapping[SettingCode, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(code, value) for code, value in values.items()))


def settings_in(payload: bytes) -> list[tuple[int, int]]:
    """The settings of a SETTINGS frame. Raises H2ConnectionError when it does not hold whole settings."""
    if len(payload) % _SETTING.size:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a size that is no multiple of six")
    return list(_SETTING.iter_unpack(payload))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """A RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _WORD.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """A GOAWAY frame."""
    return frame(FrameType.GOAWAY, 0, 0, _WORD.pack(last_stream_id) + _WORD.pack(code) + reason.encode())


def word_in(payload: bytes, name: str) -> int:
    """The one 32-bit number of a RST_STREAM or WINDOW_UPDATE frame."""
    if len(payload) != _WORD.size:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes")
    number: int = _WORD.unpack(payload)[0]
    return number


def without_padding(payload: bytes, flags: int) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def depends_on(payload: bytes) -> int:
    """The stream that the priority fields at the start of `payload` name; the rest of them is ignored."""
    if len(payload) < 5:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "priority fields cut short")
    dependency: int = _WORD.unpack_from(payload)[0] & MAX_WINDOW
    return dependency
