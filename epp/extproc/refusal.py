"""Answers in place of a worker: an HTTP status and an error body that clients' libraries can read."""

import json
from dataclasses import dataclass
from typing import cast

from epp._pb.base_pb2 import HeaderValue, HeaderValueOption
from epp._pb.external_processor_pb2 import GrpcStatus, HeaderMutation, ImmediateResponse, ProcessingResponse
from epp._pb.http_status_pb2 import HttpStatus, StatusCode

REASON_HEADER = "x-epp-refused-reason"

_OPENAI_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
_ANTHROPIC_TYPES = {
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_GRPC_CODES = {400: 3, 404: 5, 413: 8, 429: 8, 503: 14}
_GRPC_INTERNAL = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request gets no worker."""

    status: int
    message: str
    """Shown to the client."""
    reason: str
    """One word for machines: the reason header and the metric label."""
    retry_after: int | None = None
    """Seconds after which another try makes sense."""
    document: bytes | None = None
    """A JSON body in place of an error: we know the answer ourselves."""


def no_endpoint(message: str) -> Refusal:
    """Nothing can serve the request now (protocol rules P5 and P10)."""
    return Refusal(status=503, message=message, reason="no_endpoint", retry_after=1)


def overloaded(streams: int) -> Refusal:
    """More requests are open than the picker may hold."""
    message = f"the endpoint picker already serves {streams} requests"
    return Refusal(status=503, message=message, reason="overloaded", retry_after=1)


def too_large(limit: int) -> Refusal:
    """The body is longer than the operator allows."""
    return Refusal(status=413, message=f"the request body is larger than {limit} bytes", reason="too_large")


def unknown_model(message: str) -> Refusal:
    """The operator serves no such model."""
    return Refusal(status=404, message=message, reason="unknown_model")


def bad_request(problem: str) -> Refusal:
    """The body is one that engines refuse; `problem` says what is wrong with it and where."""
    return Refusal(status=400, message=f"the request body cannot be understood: {problem}", reason="bad_request")


def internal() -> Refusal:
    """A fault of ours; the cause is in our log only."""
    return Refusal(status=500, message="the endpoint picker failed to route this request", reason="internal")


def immediate_response(refusal: Refusal, *, request_id: str, path: str = "", content_type: str = "") -> bytes:
    """The serialised ImmediateResponse for `refusal`, in the form that the API behind `path` uses for errors."""
    grpc = content_type.startswith("application/grpc")
    if refusal.document is not None:
        return _answer(refusal.status, refusal.document)
    if grpc:
        # The gateway makes the message the grpc-message of a trailers-only answer.
        body = refusal.message.encode()
    else:
        body = json.dumps(_error(refusal, request_id, anthropic="/v1/messages" in path)).encode()
    headers = {"content-type": "text/plain" if grpc else "application/json", REASON_HEADER: refusal.reason}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    code = GrpcStatus(status=_GRPC_CODES.get(refusal.status, _GRPC_INTERNAL)) if grpc else None
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=cast(StatusCode, refusal.status)),
            headers=HeaderMutation(set_headers=[header(name, value) for name, value in headers.items()]),
            body=body,
            grpc_status=code,
            details=f"epp_{refusal.reason}",
        )
    ).SerializeToString()


def _answer(status: int, document: bytes) -> bytes:
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=cast(StatusCode, status)),
            headers=HeaderMutation(set_headers=[header("content-type", "application/json")]),
            body=document,
        )
    ).SerializeToString()


def _error(refusal: Refusal, request_id: str, *, anthropic: bool) -> dict[str, object]:
    if anthropic:
        kind = _ANTHROPIC_TYPES.get(refusal.status, "invalid_request_error")
        return {
            "type": "error",
            "error": {"type": kind, "message": refusal.message},
            "request_id": request_id or None,
        }
    kind = _OPENAI_TYPES.get(refusal.status, "invalid_request_error")
    error: dict[str, object] = {
        "message": refusal.message,
        "type": kind,
        "param": None,
        "code": refusal.reason,
        "request_id": request_id or None,
    }
    return {"error": error}


def header(name: str, value: str) -> HeaderValueOption:
    """A header that replaces what the client sent; in `raw_value`, since Envoy takes `value` for empty."""
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
