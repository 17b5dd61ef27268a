"""Answers as bytes: the constant ones, and body pieces wrapped without copying a body more than once.

Field numbers are those of protos/epp/_pb/external_processor.proto; tests compare every form with the generated code.
"""

from enum import IntEnum
from functools import lru_cache

from epp._pb.external_processor_pb2 import BodyResponse, HeadersResponse, ProcessingResponse, TrailersResponse

MAX_PIECE = 62_000
"""Bytes of body in one answer: some gateways refuse 64 KiB and more."""


class Place(IntEnum):
    """Which message an answer answers: its field number in ProcessingResponse."""

    REQUEST_HEADERS = ProcessingResponse.REQUEST_HEADERS_FIELD_NUMBER
    RESPONSE_HEADERS = ProcessingResponse.RESPONSE_HEADERS_FIELD_NUMBER
    REQUEST_BODY = ProcessingResponse.REQUEST_BODY_FIELD_NUMBER
    RESPONSE_BODY = ProcessingResponse.RESPONSE_BODY_FIELD_NUMBER
    REQUEST_TRAILERS = ProcessingResponse.REQUEST_TRAILERS_FIELD_NUMBER
    RESPONSE_TRAILERS = ProcessingResponse.RESPONSE_TRAILERS_FIELD_NUMBER


OK: dict[Place, bytes] = {
    Place.REQUEST_HEADERS: ProcessingResponse(request_headers=HeadersResponse()).SerializeToString(),
    Place.RESPONSE_HEADERS: ProcessingResponse(response_headers=HeadersResponse()).SerializeToString(),
    Place.REQUEST_BODY: ProcessingResponse(request_body=BodyResponse()).SerializeToString(),
    Place.RESPONSE_BODY: ProcessingResponse(response_body=BodyResponse()).SerializeToString(),
    Place.REQUEST_TRAILERS: ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString(),
    Place.RESPONSE_TRAILERS: ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString(),
}
"""The answers that change nothing."""

_END_OF_STREAM = b"\x10\x01"


def streamed(place: Place, body: bytes, *, end: bool) -> list[bytes]:
    """Answers that send `body` back in pieces, for FULL_DUPLEX_STREAMED; the last has end_of_stream when `end`.

    An empty body is one empty piece.
    """
    if len(body) <= MAX_PIECE:
        return [_piece(place, body, end=end)]
    view = memoryview(body)
    starts = range(0, len(body), MAX_PIECE)
    return [_piece(place, view[at : at + MAX_PIECE], end=end and at == starts[-1]) for at in starts]


def _piece(place: Place, body: bytes | memoryview, *, end: bool) -> bytes:
    """ProcessingResponse{place: BodyResponse{response{body_mutation{streamed_response{body, end_of_stream}}}}}."""
    return b"".join((_head(place, len(body), end), body, _END_OF_STREAM if end else b""))


@lru_cache(maxsize=4096)
def _head(place: Place, size: int, end: bool) -> bytes:
    """What stands before a body of `size` bytes; streams of tokens repeat a few sizes."""
    head = b"\x0a" + _varint(size) if size else b""
    rest = size + (len(_END_OF_STREAM) if end else 0)
    for tag in (0x1A, 0x1A, 0x0A, place << 3 | 2):
        head = bytes((tag,)) + _varint(len(head) + rest) + head
    return head


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
