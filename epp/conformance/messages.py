"""An HTTP request and its response as the ext_proc messages that each gateway makes of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from epp._pb.base_pb2 import HeaderMap, HeaderValue, Metadata
from epp._pb.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProtocolConfiguration,
)
from epp._pb.processing_mode_pb2 import ProcessingMode

DESTINATION = "x-gateway-destination-endpoint"
LB_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"

NONE = ProcessingMode.NONE
STREAMED = ProcessingMode.STREAMED
BUFFERED = ProcessingMode.BUFFERED
BUFFERED_PARTIAL = ProcessingMode.BUFFERED_PARTIAL
DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED

Header = tuple[str, bytes]


class Shape(StrEnum):
    """How a gateway writes the request's headers."""

    ENVOY = "envoy"
    """All in raw_value, pseudo-headers first."""
    AGENTGATEWAY = "agentgateway"
    """Headers in raw_value, then pseudo-headers in value."""
    NGINX = "nginx"
    """All in value, no pseudo-headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """The modes in which the proxy plays, and whether its first message announces them."""

    request_body: int = DUPLEX
    response_body: int = DUPLEX
    announced: bool = True
    body_without_waiting: bool = True
    announce_request_body: int | None = None
    """Another number to announce for the request body than the one played."""
    observe: bool = False
    """Whether the proxy only shows the exchange, and waits for no answer."""

    def config(self) -> ProtocolConfiguration | None:
        """The announcement."""
        if not self.announced:
            return None
        body = self.request_body if self.announce_request_body is None else self.announce_request_body
        return ProtocolConfiguration(
            request_body_mode=cast("ProcessingMode.BodySendMode", body),
            response_body_mode=cast("ProcessingMode.BodySendMode", self.response_body),
            send_body_without_waiting_for_header_response=self.body_without_waiting,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request of a client."""

    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: tuple[Header, ...] = (("content-type", b"application/json"),)
    chunks: tuple[bytes, ...] = ()
    """The body as it comes; none: the request has no body."""
    trailers: bool = False
    """Whether the request ends by trailers."""

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)

    @property
    def bare(self) -> bool:
        """Whether the headers end the request."""
        return not self.chunks and not self.trailers

    def __str__(self) -> str:
        size = f", {len(self.body)} bytes in {len(self.chunks)} messages" if self.chunks else ""
        return f"{self.method} {self.path}{size}{', ended by trailers' if self.trailers else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A worker's answer."""

    status: int = 200
    headers: tuple[Header, ...] = (("content-type", b"application/json"),)
    chunks: tuple[bytes, ...] = ()
    trailers: bool = False
    served: str = ""
    """The endpoint that the gateway reports to have answered (protocol rule P13)."""

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)


def request_headers(request: HttpRequest, *, modes: Modes, shape: Shape, subset: list[str] | None) -> ProcessingRequest:
    """The first message of a stream."""
    headers = HttpHeaders(headers=_header_map(request, shape), end_of_stream=request.bare)
    message = ProcessingRequest(
        request_headers=headers, protocol_config=modes.config(), observability_mode=modes.observe
    )
    if subset is not None:
        message.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: subset})
    return message


def request_body(body: bytes, *, end: bool) -> ProcessingRequest:
    """One piece of the request's body."""
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end))


def request_trailers() -> ProcessingRequest:
    """Trailers, which end the request."""
    return ProcessingRequest(request_trailers=HttpTrailers(trailers=_raw([("x-checksum", b"1")])))


def response_headers(response: HttpResponse) -> ProcessingRequest:
    """The first message of the response half."""
    headers = _raw([(":status", str(response.status).encode()), *response.headers])
    bare = not response.chunks and not response.trailers
    message = ProcessingRequest(response_headers=HttpHeaders(headers=headers, end_of_stream=bare))
    if response.served:
        metadata = Metadata()
        metadata.filter_metadata[LB_NAMESPACE].update({SERVED: response.served})
        message.metadata_context.CopyFrom(metadata)
    return message


def response_body(body: bytes, *, end: bool) -> ProcessingRequest:
    """One piece of the response's body."""
    return ProcessingRequest(response_body=HttpBody(body=body, end_of_stream=end))


def response_trailers() -> ProcessingRequest:
    """Trailers, which end the response."""
    return ProcessingRequest(response_trailers=HttpTrailers(trailers=_raw([("x-checksum", b"1")])))


def _header_map(request: HttpRequest, shape: Shape) -> HeaderMap:
    pseudo = [
        (":method", request.method.encode()),
        (":path", request.path.encode()),
        (":scheme", b"http"),
        (":authority", b"inference.example.com"),
    ]
    if shape is Shape.ENVOY:
        return _raw([*pseudo, *request.headers])
    if shape is Shape.AGENTGATEWAY:
        headers = _raw(request.headers)
        headers.headers.extend(_plain(pseudo).headers)
        return headers
    return _plain([*request.headers, ("x-epp-host", b"epp"), ("x-epp-port", b"9002")])


def _raw(headers: Iterable[Header]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=name, raw_value=value) for name, value in headers])


def _plain(headers: Iterable[Header]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=name, value=value.decode()) for name, value in headers])
