"""Pickers that break a rule about messages, bodies, modes or refusals: one for each check."""

import gzip
import json

import grpc

from epp._pb.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    ProcessingRequest,
    ProcessingResponse,
)

from .broken import (
    close,
    internal_for_refusals,
    is_,
    kind,
    mutation,
    of_body,
    picks,
    silence,
    streamed,
    when,
    without,
)
from .correct import DESTINATION, Answers, CloseError, Exchange, Fault, option, piece
from .correct import refusal as refused


def as_common(bodies: Answers) -> Answers:
    place = kind(bodies[0])
    return [
        ProcessingResponse(**{place: BodyResponse(response=CommonResponse(body_mutation=BodyMutation(body=b"x")))})
        for _ in bodies
    ]


def one_byte_other(bodies: Answers) -> Answers:
    if streamed(bodies[0]).body:
        streamed(bodies[0]).body = b"?" + streamed(bodies[0]).body[1:]
    return bodies


def end_twice(bodies: Answers) -> Answers:
    return [*bodies, bodies[-1]] if streamed(bodies[-1]).end_of_stream else bodies


def in_one_piece(bodies: Answers) -> Answers:
    whole = b"".join(streamed(body).body for body in bodies)
    return [piece(kind(bodies[0]), whole, end=streamed(bodies[-1]).end_of_stream)]


def never_ends(bodies: Answers) -> Answers:
    for body in bodies:
        streamed(body).end_of_stream = False
    return bodies


def first_ends(bodies: Answers) -> Answers:
    streamed(bodies[0]).end_of_stream = True
    return bodies


def appends_the_repeated_end(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    if kind(message) == "request_body" and not answers and exchange.request_over:
        return [piece("request_body", message.request_body.body, end=True)]
    return answers


def refuses_what_is_no_json(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    if exchange.body and exchange.request_over and not exchange.response_over and picks(answers):
        try:
            json.loads(exchange.body)
        except ValueError:
            return [refused(500)]
    return answers


def ends_with_ok_on_no_json(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    if exchange.body[:1] == b"{" and exchange.body[1:2] == b"n" and picks(answers):
        raise CloseError(grpc.StatusCode.OK)
    return answers


def holds_the_answer(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    """Sends the response's body on only when all of it is there."""
    if kind(message) == "response_body" and exchange.response_mode == 4:
        exchange.chunks.append(message.response_body.body)
        return answers if message.response_body.end_of_stream else []
    return answers


def late_error(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    status = next((h.raw_value for h in message.response_headers.headers.headers if h.key == ":status"), b"")
    return [refused(429)] if status == b"429" else answers


def parses_errors(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    if kind(message) == "response_body" and b"no healthy" in message.response_body.body:
        return [piece("response_body", b'{"error":"parse"}', end=True)]
    return answers


def pieces_in_streamed_mode(place: str):
    def answers(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
        if kind(message) == place:
            return [piece(place, getattr(message, place).body, end=False)]
        return answers

    return Fault(answers=answers)


def announces(mode: int, place: str = "request_body_mode"):
    def condition(exchange: Exchange, _message: ProcessingRequest) -> bool:
        config = exchange.first.protocol_config
        return exchange.first.HasField("protocol_config") and getattr(config, place) == mode

    return condition


def sets_on_response(name: str, value: str):
    def answers(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
        for answer in answers:
            if kind(answer) == "response_headers":
                mutation(answer).set_headers.append(option(name, value))
        return answers

    return Fault(answers=answers)


def is_gzip(exchange: Exchange, _message: ProcessingRequest) -> bool:
    return exchange.body[:2] == gzip.compress(b"")[:2]


def refuses_repeated_ids() -> Fault:
    seen: set[str] = set()

    def answers(exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
        request_id = exchange.headers.get("x-request-id")
        if request_id is None or not picks(answers):
            return answers
        if request_id in seen:
            return [refused(409)]
        seen.add(request_id)
        return answers

    return Fault(answers=answers)


REQUEST = {
    "request.streamed-response": (of_body(as_common, "request_body"), "no streamed_response"),
    "request.order": (when(is_("request_body"), instead=lambda e, m, a: a[1:] + a[:1]), "in that order"),
    "request.same-bytes": (of_body(one_byte_other, "request_body"), "byte 0 of"),
    "request.one-end": (of_body(end_twice, "request_body"), "end_of_stream in 2"),
    "request.piece-size": (of_body(in_one_piece, "request_body"), "a piece of"),
    "request.ends-by-trailers": (when(is_("request_trailers"), instead=silence), "no answer in time"),
    "request.repeated-end": (Fault(answers=appends_the_repeated_end), "came again"),
    "request.empty-body": (
        when(lambda e, m: e.chunks == [b""], instead=silence),
        "no answer in time",
    ),
    "request.encoded-body": (when(is_gzip, instead=lambda *_: [refused(400)]), "ImmediateResponse 400"),
    "request.unknown-api": (
        when(lambda e, m: e.headers.get(":path") == "/foo", instead=lambda *_: [refused(500)]),
        "ImmediateResponse 500",
    ),
}

RESPONSE = {
    "response.streams": (Fault(answers=holds_the_answer), "no answer in time"),
    "response.same-bytes": (of_body(one_byte_other, "response_body"), "byte 0 of"),
    "response.plain-error": (Fault(answers=parses_errors), "came back"),
    "response.streamed-response": (of_body(as_common, "response_body"), "no streamed_response"),
    "response.order": (
        when(is_("response_headers"), instead=lambda e, m, a: a + a),
        "in that order",
    ),
    "response.one-end": (of_body(first_ends, "response_body"), "end_of_stream in"),
    "response.piece-size": (of_body(in_one_piece, "response_body"), "a piece of"),
    "response.ends-by-trailers": (without("response_trailers"), "the RPC ended with OK"),
    "response.header-only": (when(is_("response_headers"), instead=silence), "response 204"),
    "response.stays-open": (when(is_("response_headers"), instead=close(grpc.StatusCode.OK)), "ended with OK"),
    "response.half-close-ends": (Fault(lingers=True), "stayed open"),
    "response.own-headers-only": (sets_on_response("Transfer-Encoding", "chunked"), "sets Transfer-Encoding"),
    "response.served-endpoint": (
        when(
            lambda e, m: (
                m.metadata_context.filter_metadata["envoy.lb"].fields[f"{DESTINATION}-served"].string_value
                == "nonsense"
            ),
            instead=close(grpc.StatusCode.INTERNAL),
        ),
        "the RPC ended",
    ),
    "response.before-request-end": (
        when(lambda e, m: not e.request_over and kind(m).startswith("response"), instead=silence),
        "no answer in time",
    ),
    "response.no-late-refusal": (Fault(answers=late_error), "ImmediateResponse 429"),
    "response.ends-itself": (Fault(lingers=True), "stayed open"),
}

MODES = {
    "modes.not-announced": (
        when(lambda e, m: not e.first.HasField("protocol_config"), instead=close(grpc.StatusCode.INVALID_ARGUMENT)),
        "INVALID_ARGUMENT",
    ),
    "modes.waiting-announced": (
        when(
            lambda e, m: not e.first.protocol_config.send_body_without_waiting_for_header_response,
            instead=close(grpc.StatusCode.FAILED_PRECONDITION),
        ),
        "the RPC ended",
    ),
    "modes.unknown-announced": (when(announces(9), instead=silence), "no answer in time"),
    "modes.request-buffered": (when(announces(2), instead=silence), "no answer in time"),
    "modes.request-buffered-partial": (when(announces(3), instead=silence), "no answer in time"),
    "modes.request-streamed": (pieces_in_streamed_mode("request_body"), "is a streamed_response"),
    "modes.request-none": (when(announces(0), instead=silence), "no answer in time"),
    "modes.response-none": (
        when(lambda e, m: announces(0, "response_body_mode")(e, m) and kind(m) == "response_headers", instead=silence),
        "no answer in time",
    ),
    "modes.response-streamed": (pieces_in_streamed_mode("response_body"), "is a streamed_response"),
    "modes.response-buffered": (pieces_in_streamed_mode("response_body"), "is a streamed_response"),
    "modes.observability": (
        when(lambda e, m: e.first.observability_mode, instead=close(grpc.StatusCode.UNIMPLEMENTED)),
        "the RPC",
    ),
}

REFUSAL = {
    "refusal.empty-pool-503": (Fault(answers=internal_for_refusals), "INTERNAL"),
    "refusal.nothing-follows": (
        Fault(answers=lambda e, m, a: a * 2 if a and kind(a[0]) == "immediate_response" else a),
        "one more answer",
    ),
    "refusal.json-body": (
        Fault(answers=lambda e, m, a: [b for b in a if not b.immediate_response.ClearField("body")]),
        "body b''",
    ),
    "refusal.odd-request-answered": (Fault(answers=ends_with_ok_on_no_json), "ended with OK"),
    "refusal.client-mistake-no-5xx": (Fault(answers=refuses_what_is_no_json), "ImmediateResponse 500"),
}

GATEWAY = {
    "gateway.envoy": (of_body(never_ends, "request_body"), "no answer in time"),
    "gateway.agentgateway": (when(is_("response_headers"), instead=close(grpc.StatusCode.OK)), "ended with OK"),
    "gateway.nginx": (Fault(lingers=True), "stayed open"),
    "gateway.ai-gateway-buffered": (when(announces(2), instead=silence), "no answer in time"),
    "gateway.retries": (refuses_repeated_ids(), "ImmediateResponse 409"),
}

FAULTS: dict[str, tuple[Fault, str]] = {**REQUEST, **RESPONSE, **MODES, **REFUSAL, **GATEWAY}
"""By check: a fault that it must find, and words of what it must say."""
