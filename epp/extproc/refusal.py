"""Answers in place of a worker: an HTTP status and an error body that clients' libraries can read."""

import json
from dataclasses import dataclass
from typing import cast

from epp._pb.base_pb2 import HeaderValue, HeaderValueOption
from epp._pb.external_processor_pb2 import HeaderMutation, ImmediateResponse, ProcessingResponse
from epp._pb.http_status_pb2 import HttpStatus, StatusCode

REASON_HEADER = "x-epp-refused-reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request gets no worker; `message` is shown to the client."""

    status: int
    message: str
    reason: str
    """One word for machines: the reason header and the metric label."""
    kind: str = "server_error"
    """OpenAI's error type."""
    retry_after: int | None = None
    """Seconds after which another try makes sense."""


def no_endpoint(message: str) -> Refusal:
    """Nothing can serve the request now (protocol rules P5 and P10)."""
    return Refusal(status=503, message=message, reason="no_endpoint", retry_after=1)


def internal() -> Refusal:
    """A fault of ours; the cause is in our log only."""
    return Refusal(status=500, message="the endpoint picker failed to route this request", reason="internal")


def immediate_response(refusal: Refusal, *, request_id: str) -> bytes:
    """The serialised ImmediateResponse for `refusal`."""
    error = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.reason}
    if request_id:
        error["request_id"] = request_id
    headers = {"content-type": "application/json", REASON_HEADER: refusal.reason}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=cast(StatusCode, refusal.status)),
            headers=HeaderMutation(set_headers=[header(name, value) for name, value in headers.items()]),
            body=json.dumps({"error": error}).encode(),
            details=f"epp_{refusal.reason}",
        )
    ).SerializeToString()


def header(name: str, value: str) -> HeaderValueOption:
    """A header that replaces what the client sent; in `raw_value`, since Envoy takes `value` for empty."""
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
