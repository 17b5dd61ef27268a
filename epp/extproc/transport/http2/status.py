"""How a gRPC call ends: statuses and the header blocks that carry them (gRPC over HTTP/2, "Responses")."""

from enum import IntEnum
from urllib.parse import quote

from epp.extproc.transport.http2.headers import literal

_STATUS_200 = b"\x88"
_CONTENT_TYPE = literal(b"content-type", b"application/grpc")
_KEPT = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_MAX_MESSAGE = 1024


class Status(IntEnum):
    """The gRPC status codes that are needed here."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """The call ends with `status`; the text goes to the peer."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


RESPONSE_HEADERS = _STATUS_200 + _CONTENT_TYPE
_OK = literal(b"grpc-status", b"0")


def trailers(status: Status, text: str = "") -> bytes:
    """The trailers that end a call whose response headers are sent."""
    if status is Status.OK:
        return _OK
    block = literal(b"grpc-status", str(int(status)).encode())
    if text:
        block += literal(b"grpc-message", quote(text[:_MAX_MESSAGE], safe=_KEPT).encode())
    return block


def trailers_only(status: Status, text: str = "") -> bytes:
    """A whole response without messages."""
    return RESPONSE_HEADERS + trailers(status, text)
