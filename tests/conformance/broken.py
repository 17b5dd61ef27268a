"""Pickers with one fault each: for every check, one that it must find."""

import gzip
import json

import grpc

from epp._pb.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
)

from .correct import DESTINATION, ENDPOINTS, SERVED_ECHO, STEER, Answers, CloseError, Exchange, Fault, option, piece
from .correct import refusal as refused


def kind(message: ProcessingRequest | ProcessingResponse) -> str:
    return message.WhichOneof("request" if isinstance(message, ProcessingRequest) else "response") or ""


def picks(answers: Answers) -> list[ProcessingResponse]:
    """The answers that carry a pick."""
    return [answer for answer in answers if kind(answer) != "immediate_response" and answer.dynamic_metadata.fields]


def destination(answer: ProcessingResponse):
    """The option that sets the destination header."""
    half = getattr(answer, kind(answer))
    return next(o for o in half.response.header_mutation.set_headers if o.header.key == DESTINATION)


def mutation(answer: ProcessingResponse):
    return getattr(answer, kind(answer)).response.header_mutation


def name_instead(answer: ProcessingResponse, endpoint: str) -> None:
    destination(answer).header.raw_value = endpoint.encode()
    answer.dynamic_metadata.update({"envoy.lb": {DESTINATION: endpoint}})


def each_pick(change):
    """A fault that changes each pick in place."""

    def answers(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
        for answer in picks(answers):
            change(exchange, answer)
        return answers

    return Fault(answers=answers)


def when(condition, *, instead):
    """A fault that answers something else to some messages."""

    def answers(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
        return instead(exchange, message, answers) if condition(exchange, message) else answers

    return Fault(answers=answers)


def close(code: grpc.StatusCode):
    def answers(*_: object) -> Answers:
        raise CloseError(code)

    return answers


def silence(*_: object) -> Answers:
    return []


def is_(*kinds: str):
    return lambda _exchange, message: kind(message) in kinds


def without(*kinds: str):
    """A fault that leaves out answers of some kinds."""
    return Fault(answers=lambda _exchange, _message, answers: [a for a in answers if kind(a) not in kinds])


def of_body(change, place: str):
    """A fault that changes the answers to body messages of one half."""

    def answers(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
        bodies = [answer for answer in answers if kind(answer) == place]
        others = [answer for answer in answers if kind(answer) != place]
        return others + change(bodies) if bodies else answers

    return Fault(answers=answers)


def streamed(answer: ProcessingResponse):
    return getattr(answer, kind(answer)).response.body_mutation.streamed_response


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


def mixes_bodies() -> Fault:
    """Sends the first body that it got to everybody."""
    kept: list[Answers] = []

    def change(bodies: Answers) -> Answers:
        kept.append(bodies)
        return kept[0]

    return of_body(change, "request_body")


def forwards_the_clients(exchange: Exchange, answer: ProcessingResponse) -> None:
    if DESTINATION in exchange.headers:
        name_instead(answer, exchange.headers[DESTINATION])


def obeys_the_clients_subset(exchange: Exchange, answer: ProcessingResponse) -> None:
    subset = exchange.headers.get(f"{DESTINATION}-subset")
    if subset:
        name_instead(answer, subset)


def picks_by_ip(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    """Ignores the port of an entry of the subset."""
    hint = exchange.first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    entries = [value.string_value for value in hint.fields[f"{DESTINATION}-subset"].list_value.values]
    if entries and answers and kind(answers[0]) == "immediate_response":
        for endpoint in ENDPOINTS:
            if endpoint.split(":")[0] == entries[0].split(":")[0]:
                exchange.first.metadata_context.Clear()
                reply = exchange._pick("request_headers")
                name_instead(reply[0], endpoint)
                return reply
    return answers


def ignores_subset(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    if answers and kind(answers[0]) == "immediate_response":
        return answers
    for answer in picks(answers):
        name_instead(answer, ENDPOINTS[0])
    return answers


def ignores_list(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    """Takes a hint of one entry only."""
    hint = exchange.first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    if len(hint.fields[f"{DESTINATION}-subset"].list_value.values) > 1:
        for answer in picks(answers):
            name_instead(answer, ENDPOINTS[0])
    return answers


def takes_the_first_entry(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    hint = exchange.first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    entries = [value.string_value for value in hint.fields[f"{DESTINATION}-subset"].list_value.values]
    for answer in picks(answers) if entries else []:
        name_instead(answer, entries[0])
    return answers


def internal_for_refusals(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
    """As lwepp: a gRPC error where the protocol wants a 503."""
    if any(kind(answer) == "immediate_response" for answer in answers):
        raise CloseError(grpc.StatusCode.INTERNAL)
    return answers


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


def lacks_path(exchange: Exchange, _message: ProcessingRequest) -> bool:
    return ":path" not in exchange.headers


def sets(name: str, value: str):
    """A fault that sets one more header on the request."""
    return each_pick(lambda _exchange, answer: mutation(answer).set_headers.append(option(name, value)))


def sets_on_response(name: str, value: str):
    def answers(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
        for answer in answers:
            if kind(answer) == "response_headers":
                mutation(answer).set_headers.append(option(name, value))
        return answers

    return Fault(answers=answers)


def clears(field: str):
    return each_pick(lambda _exchange, answer: answer.ClearField(field))


def strict_utf8(exchange: Exchange, _message: ProcessingRequest) -> bool:
    return "\ufffd" in "".join(exchange.headers.values())


def after_trailers(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
    return [*answers[1:], answers[0]]


def removes_metadata_of_lists(_exchange: Exchange, answer: ProcessingResponse) -> None:
    name_instead(answer, f"{ENDPOINTS[0]},{ENDPOINTS[1]}")


def in_value(_exchange: Exchange, answer: ProcessingResponse) -> None:
    header = destination(answer).header
    header.value, header.raw_value = header.raw_value.decode(), b""


def only_in_body(_exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    """Puts the pick on the body answer."""
    for head in picks(answers):
        body = next((answer for answer in answers if kind(answer) == "request_body"), None)
        if body is not None and kind(head) == "request_headers":
            body.request_body.response.header_mutation.CopyFrom(mutation(head))
            body.dynamic_metadata.CopyFrom(head.dynamic_metadata)
            head.request_headers.Clear()
            head.dynamic_metadata.Clear()
    return answers


def is_gzip(exchange: Exchange, _message: ProcessingRequest) -> bool:
    return exchange.body[:2] == gzip.compress(b"")[:2]


def adds_none_kind(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
    return [*answers, ProcessingResponse()]


CONNECTION = {
    "connection.service": (Fault(registered=False), "UNIMPLEMENTED"),
    "connection.large-message": (Fault(max_message=4 * 1024 * 1024), "the RPC ended"),
    "connection.parallel-streams": (mixes_bodies(), "not the one that was sent"),
    "connection.broken-stream-alone": (Fault(dies_of_garbage=True), "the RPC ended"),
    "connection.client-left": (Fault(dies_of_reset=True), "the RPC ended"),
    "connection.half-close-mid-request": (Fault(lingers=True), "stayed open"),
}

PICK = {
    "pick.header-only": (when(is_("request_headers"), instead=silence), "no answer in time"),
    "pick.header-and-metadata": (clears("dynamic_metadata"), "no metadata"),
    "pick.same-in-both": (
        each_pick(lambda _, a: a.dynamic_metadata.update({"envoy.lb": {DESTINATION: "10.9.9.9:1"}})),
        "metadata 10.9.9.9:1",
    ),
    "pick.form": (each_pick(lambda _, a: name_instead(a, "worker-0:8000")), "'worker-0:8000': expected ip:port"),
    "pick.in-pool": (each_pick(lambda _, a: name_instead(a, "10.9.9.9:8000")), "picked 10.9.9.9:8000"),
    "pick.one-by-default": (each_pick(removes_metadata_of_lists), "a list of 2"),
    "pick.in-headers-answer": (Fault(answers=only_in_body), "names no endpoint"),
    "pick.raw-value": (each_pick(in_value), "no raw_value"),
    "pick.replaces": (each_pick(lambda _, a: setattr(destination(a), "append_action", 1)), "ADD_IF_ABSENT"),
    "pick.clears-route-cache": (
        each_pick(lambda _, a: a.request_headers.response.ClearField("clear_route_cache")),
        "not set",
    ),
    "pick.no-mode-override": (each_pick(lambda _, a: a.mode_override.SetInParent()), "mode_override"),
    "pick.in-time": (Fault(delay=0.25), "the fastest of five"),
}

SUBSET = {
    "subset.binding": (Fault(answers=ignores_subset), f"picked {ENDPOINTS[0]}"),
    "subset.several": (Fault(answers=ignores_list), f"picked {ENDPOINTS[0]}"),
    "subset.ignores-strangers": (Fault(answers=takes_the_first_entry), "picked 192.0.2.1:9"),
    "subset.empty-503": (Fault(answers=internal_for_refusals), "INTERNAL"),
    "subset.none-eligible-503": (
        when(lambda e, m: not e.picked and e.request_over, instead=lambda *_: [refused(500)]),
        "ImmediateResponse 500",
    ),
    "subset.port-counts": (Fault(answers=picks_by_ip), "picked 10.0.0.1:8000"),
}

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

HYGIENE = {
    "hygiene.destination-from-client": (each_pick(forwards_the_clients), "the worker gets"),
    "hygiene.subset-from-client": (each_pick(obeys_the_clients_subset), "which a client named"),
    "hygiene.internal-headers": (
        each_pick(lambda _, a: mutation(a).remove_headers.remove("x-prefiller-host-port")),
        "x-prefiller-host-port",
    ),
    "hygiene.client-headers-kept": (sets("authorization", "Bearer mine"), "changed authorization"),
    "hygiene.no-hop-by-hop": (sets("content-length", "7"), "content-length 7"),
    "hygiene.bytes-in-values": (when(strict_utf8, instead=close(grpc.StatusCode.INTERNAL)), "INTERNAL"),
    "hygiene.no-pseudo-headers": (when(lacks_path, instead=lambda *_: [refused(400)]), "as nginx sends it"),
}

HEALTH = {
    "health.liveness": (Fault(health={"liveness": 0}), "NOT_FOUND"),
    "health.readiness": (Fault(health={"readiness": 2}), "NOT_SERVING"),
    "health.ext-proc-service": (Fault(health={"envoy.service.ext_proc.v3.ExternalProcessor": 0}), "NOT_FOUND"),
    "health.suite-name": (Fault(health={"inference-extension": 0}), "NOT_FOUND"),
    "health.empty-name": (Fault(health={"": 2}), "NOT_SERVING"),
    "health.watch": (Fault(health={"readiness": 2}), "not SERVING"),
    "health.unknown-name": (Fault(health={"epp-conformance-no-such-service": 1}), "SERVING"),
}

GATEWAY = {
    "gateway.envoy": (of_body(never_ends, "request_body"), "no answer in time"),
    "gateway.agentgateway": (when(is_("response_headers"), instead=close(grpc.StatusCode.OK)), "ended with OK"),
    "gateway.nginx": (Fault(lingers=True), "stayed open"),
    "gateway.ai-gateway-buffered": (when(announces(2), instead=silence), "no answer in time"),
    "gateway.retries": (
        when(lambda e, m: e.picker.turn > 9 and "x-request-id" in e.headers, instead=lambda *_: [refused(409)]),
        "ImmediateResponse 409",
    ),
}

HOOKS = {
    "hooks.steering": (each_pick(lambda e, a: name_instead(a, ENDPOINTS[-1])), STEER),
    "hooks.steering-over-subset": (
        when(
            lambda e, m: "envoy.lb.subset_hint" in e.first.metadata_context.filter_metadata,
            instead=lambda *_: [refused(503)],
        ),
        "ImmediateResponse 503",
    ),
    "hooks.strangers-answered": (
        when(
            lambda e, m: e.headers.get(STEER, "").startswith("192.0.2.1"),
            instead=close(grpc.StatusCode.INTERNAL),
        ),
        "INTERNAL",
    ),
    "hooks.served-echo": (
        when(is_("response_headers"), instead=lambda *_: [ProcessingResponse(response_headers=HeadersResponse())]),
        SERVED_ECHO,
    ),
    "hooks.echo-order": (
        each_pick(lambda _, a: mutation(a).set_headers.pop()),
        "x-echo-set-header",
    ),
}

FAULTS: dict[str, tuple[Fault, str]] = {
    **CONNECTION,
    **PICK,
    **SUBSET,
    **REQUEST,
    **RESPONSE,
    **MODES,
    **REFUSAL,
    **HYGIENE,
    **HEALTH,
    **GATEWAY,
    **HOOKS,
}
"""By check: a fault that it must find, and words of what it must say."""
