"""Pickers that break a rule about the service, the pick, headers, health or hooks: one for each check."""

import grpc

from epp._pb.external_processor_pb2 import (
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
)

from .broken import (
    close,
    destination,
    each_pick,
    internal_for_refusals,
    is_,
    kind,
    mutation,
    name_instead,
    of_body,
    picks,
    sets,
    silence,
    when,
)
from .correct import DESTINATION, ENDPOINTS, SERVED_ECHO, STEER, Answers, Exchange, Fault
from .correct import refusal as refused


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
    hints = exchange.first.metadata_context.filter_metadata
    if "envoy.lb.subset_hint" not in hints:  # to look for it would make an empty one
        return answers
    if len(hints["envoy.lb.subset_hint"].fields[f"{DESTINATION}-subset"].list_value.values) > 1:
        for answer in picks(answers):
            name_instead(answer, ENDPOINTS[0])
    return answers


def takes_the_first_entry(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
    hint = exchange.first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    entries = [value.string_value for value in hint.fields[f"{DESTINATION}-subset"].list_value.values]
    for answer in picks(answers) if entries else []:
        name_instead(answer, entries[0])
    return answers


def lacks_path(exchange: Exchange, _message: ProcessingRequest) -> bool:
    return ":path" not in exchange.headers


def clears(field: str):
    return each_pick(lambda _exchange, answer: answer.ClearField(field))


def strict_utf8(exchange: Exchange, _message: ProcessingRequest) -> bool:
    return "\ufffd" in "".join(exchange.headers.values())


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


CONNECTION = {
    "connection.service": (Fault(registered=False), "UNIMPLEMENTED"),
    "connection.large-message": (Fault(max_message=4 * 1024 * 1024), "the RPC ended"),
    "connection.parallel-streams": (mixes_bodies(), "not the one that was sent"),
    "connection.long-answers": (Fault(max_streams=8), "no answer in time"),
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

FAULTS: dict[str, tuple[Fault, str]] = {**CONNECTION, **PICK, **SUBSET, **HYGIENE, **HEALTH, **HOOKS}
"""By check: a fault that it must find, and words of what it must say."""
