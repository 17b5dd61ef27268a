"""Whether a request is a gRPC call that can be served (gRPC over HTTP/2, "Requests")."""

import re
from collections.abc import Container
from dataclasses import dataclass

from epp.extproc.transport.http2.headers import RequestHead, literal
from epp.extproc.transport.http2.status import GrpcError, Status, trailers

_CONTENT_TYPE = re.compile(rb"application/grpc(\+proto)?[ \t]*(;.*)?", re.IGNORECASE)
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
ONLY_IDENTITY = literal(b"grpc-accept-encoding", b"identity")


@dataclass(frozen=True, slots=True)
class NotGrpc:
    """What a caller that does not speak gRPC is told, in plain HTTP."""

    status: int
    text: str

    def headers(self) -> bytes:
        """The response's header block."""
        return literal(b":status", str(self.status).encode()) + literal(b"content-type", b"text/plain")

    def trailers(self) -> bytes:
        """The trailers, for gRPC clients that look there."""
        return trailers(Status.UNIMPLEMENTED, self.text)


def not_grpc(head: RequestHead) -> NotGrpc | None:
    """What is wrong with a request that is no gRPC call; None for one that is."""
    content_type = head.fields.get(b"content-type", b"")
    if content_type != b"application/grpc" and not _CONTENT_TYPE.fullmatch(content_type):
        return NotGrpc(415, "this port serves gRPC: content-type must be application/grpc")
    if head.method != b"POST":
        return NotGrpc(405, "this port serves gRPC: method must be POST")
    return None


def timeout_seconds(head: RequestHead, methods: Container[bytes]) -> float | None:
    """The call's time limit, None without one. Raises GrpcError for a call that cannot be served."""
    if head.path not in methods:
        raise GrpcError(Status.UNIMPLEMENTED, f"no method {head.path[:200].decode('ascii', 'replace')}")
    encoding = head.fields.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        raise GrpcError(Status.UNIMPLEMENTED, "grpc-encoding other than identity")
    text = head.fields.get(b"grpc-timeout")
    if text is None:
        return None
    parts = _TIMEOUT.fullmatch(text)
    if parts is None:
        raise GrpcError(Status.INTERNAL, "malformed grpc-timeout")
    return int(parts[1]) * _SECONDS[parts[2]]
