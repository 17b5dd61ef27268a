"""The state machine, mode by mode, without any I/O."""

import pytest

from epp._pb.external_processor_pb2 import ProcessingRequest, ProcessingResponse, ProtocolConfiguration
from epp.endpoints.endpoint import Endpoint
from epp.extproc.exchange import Exchange, ExchangeKit, ProtocolError
from epp.extproc.refusal import no_endpoint
from epp.extproc.rules import ExchangeRules
from epp.scheduling.scheduler import Decision
from epp.settings import BodyMode

from .world import (
    BUFFERED,
    BUFFERED_PARTIAL,
    DESTINATION,
    DUPLEX,
    NONE,
    STREAMED,
    config,
    destination,
    kinds,
    parse,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
)

PICK = Decision(endpoint=Endpoint(name="w", address="10.0.0.1", port=8000))
THERE = ("10.0.0.1:8000", "10.0.0.1:8000")


def exchange(**rules: object) -> Exchange:
    return Exchange(ExchangeKit(ExchangeRules(**rules)))


def feed(machine: Exchange, *messages: bytes) -> list[ProcessingResponse]:
    """Send messages; the pick is made as soon as it is wanted."""
    answers = []
    for message in messages:
        answers += parse(machine.receive(message))
        if machine.wants_pick:
            answers += parse(machine.answer(PICK))
    return answers


# --- Request side


def test_full_duplex_holds_all_answers_until_the_body_is_complete() -> None:
    machine = exchange()
    assert not machine.receive(request_headers(modes=config()))
    assert not machine.receive(request_body(b"one "))
    assert not machine.wants_pick
    assert not machine.receive(request_body(b"two"))
    assert not machine.receive(request_body(b"", end=True))
    assert machine.wants_pick
    assert machine.held.joined() == b"one two"
    answers = parse(machine.answer(PICK))
    assert kinds(answers) == ["request_headers", "request_body", "request_body"]
    assert destination(answers[0]) == THERE
    assert answers[0].request_headers.response.clear_route_cache
    assert streamed(answers) == (b"one two", [False, True])


@pytest.mark.parametrize("end_on", ["data", "empty", "trailers"])
def test_full_duplex_ends_on_data_on_an_empty_message_or_on_trailers(end_on: str) -> None:
    end = {
        "data": [request_body(b"x", end=True)],
        "empty": [request_body(b"x"), request_body(b"", end=True)],
        "trailers": [request_body(b"x"), request_trailers()],
    }[end_on]
    answers = feed(exchange(), request_headers(modes=config()), *end)
    body, ends = streamed(answers)
    assert body == b"x"
    assert ends == [end_on != "trailers"]
    assert (kinds(answers)[-1] == "request_trailers") == (end_on == "trailers")


def test_full_duplex_headers_then_trailers_without_a_body() -> None:
    answers = feed(exchange(), request_headers(modes=config()), request_trailers())
    assert kinds(answers) == ["request_headers", "request_trailers"]


def test_full_duplex_with_an_announced_but_empty_body_sends_its_end_back() -> None:
    answers = feed(exchange(), request_headers(modes=config()), request_body(b"", end=True))
    assert streamed(answers) == (b"", [True])


def test_a_repeated_last_chunk_is_neither_appended_nor_answered() -> None:
    machine = exchange()
    answers = feed(
        machine,
        request_headers(modes=config()),
        request_body(b"a" * 65536),
        request_body(b"end", end=True),
        request_body(b"end", end=True),
    )
    body, ends = streamed(answers)
    assert body == b"a" * 65536 + b"end"
    assert ends.count(True) == 1


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 4 * 1024 * 1024, 20 * 1024 * 1024])
def test_bodies_go_back_in_pieces_that_every_gateway_takes(size: int) -> None:
    sent = bytes(range(256)) * (size // 256 + 1)
    sent = sent[:size]
    answers = feed(exchange(), request_headers(modes=config()), request_body(sent, end=True))
    body, ends = streamed(answers)
    assert body == sent
    assert ends == [False] * (len(ends) - 1) + [True]
    pieces = [answer.request_body.response.body_mutation.streamed_response.body for answer in answers[1:]]
    assert max(map(len, pieces)) <= 62_000


@pytest.mark.parametrize("modes", [config(NONE), config(STREAMED), config(BUFFERED), config(), None])
def test_a_request_without_a_body_is_picked_at_once_in_every_mode(modes: ProtocolConfiguration | None) -> None:
    answers = feed(exchange(), request_headers(end=True, modes=modes))
    assert kinds(answers) == ["request_headers"]
    assert destination(answers[0]) == THERE


def test_mode_none_picks_from_the_headers() -> None:
    answers = feed(exchange(), request_headers(modes=config(NONE)))
    assert destination(answers[0]) == THERE


def test_mode_streamed_picks_from_the_headers_and_answers_every_chunk_in_the_plain_form() -> None:
    answers = feed(
        exchange(),
        request_headers(modes=config(STREAMED)),
        *[request_body(b"x") for _ in range(16)],
        request_body(b"", end=True),
        request_body(b"", end=True),
    )
    assert destination(answers[0]) == THERE
    assert kinds(answers)[1:] == ["request_body"] * 18
    assert not any(answer.request_body.response.HasField("body_mutation") for answer in answers)


@pytest.mark.parametrize("mode", [BUFFERED, BUFFERED_PARTIAL])
@pytest.mark.parametrize("end", [True, False])
def test_buffered_modes_answer_headers_first_and_put_the_pick_on_the_body(mode: int, end: bool) -> None:
    machine = exchange()
    first = parse(machine.receive(request_headers(modes=config(mode))))
    assert kinds(first) == ["request_headers"]
    assert destination(first[0]) == ("", "")
    (answer,) = feed(machine, request_body(b"{}", end=end))
    assert machine.held.size == 2
    assert destination(answer) == THERE
    assert not answer.request_body.response.HasField("body_mutation")


def test_buffered_trailers_without_a_body_carry_the_pick_as_metadata() -> None:
    answers = feed(exchange(), request_headers(modes=config(BUFFERED)), request_trailers())
    assert kinds(answers) == ["request_headers", "request_trailers"]
    assert destination(answers[1]) == ("", "10.0.0.1:8000")


def test_headers_that_the_gateway_does_not_send_are_not_answered() -> None:
    answers = feed(exchange(), request_body(b"{}", end=True))
    assert kinds(answers) == ["request_body"]
    assert destination(answers[0]) == ("", "10.0.0.1:8000")
    assert streamed(answers) == (b"{}", [True])


def test_modes_come_from_the_settings_where_the_gateway_announces_none() -> None:
    machine = exchange(request_body_mode=BodyMode.BUFFERED)
    assert kinds(parse(machine.receive(request_headers()))) == ["request_headers"]


def test_a_mode_of_a_later_proxy_is_served_as_full_duplex() -> None:
    modes = ProtocolConfiguration()
    modes.MergeFromString(b"\x08\x09\x10\x09")
    answers = feed(exchange(), request_headers(modes=modes), request_body(b"x", end=True))
    assert streamed(answers) == (b"x", [True])


def test_a_body_beyond_the_limit_is_picked_by_its_beginning_and_streams_through() -> None:
    machine = exchange(max_body_bytes=10)
    assert not machine.receive(request_headers(modes=config()))
    assert not machine.receive(request_body(b"0123456789"))
    assert not machine.receive(request_body(b"abc"))
    assert machine.wants_pick
    answers = parse(machine.answer(PICK))
    answers += feed(machine, request_body(b"def"), request_body(b"", end=True))
    assert streamed(answers) == (b"0123456789abcdef", [False, False, False, True])


def test_all_bodies_together_are_bounded_and_given_back() -> None:
    kit = ExchangeKit(ExchangeRules(max_buffered_bytes=10))
    first, second = Exchange(kit), Exchange(kit)
    first.receive(request_headers(modes=config()))
    first.receive(request_body(b"12345678"))
    second.receive(request_headers(modes=config()))
    second.receive(request_body(b"12345678"))
    assert second.wants_pick
    assert not first.wants_pick
    second.answer(PICK)
    first.close()
    assert kit.budget.used == 0


def test_observability_mode_gets_no_answers() -> None:
    machine = exchange()
    assert not feed(machine, request_headers(modes=config(), observe=True), request_body(b"x", end=True))
    assert not feed(machine, response_headers(), response_body(b"x", end=True))
    assert not machine.wants_pick


def test_repeated_headers_and_unknown_members_break_nothing() -> None:
    machine = exchange()
    answers = feed(
        machine,
        request_headers(modes=config()),
        request_headers(modes=config()),
        b"\xfa\x3e\x02hi",
        ProcessingRequest().SerializeToString(),
        request_body(b"x", end=True),
    )
    assert kinds(answers) == ["request_headers", "request_body"]


def test_bytes_that_are_no_message_are_named_so() -> None:
    with pytest.raises(ProtocolError):
        exchange().receive(b"\xff\xff")


# --- Response side


def picked(response_mode: int = DUPLEX) -> Exchange:
    machine = exchange()
    feed(machine, request_headers(end=True, modes=config(DUPLEX, response_mode)))
    return machine


def test_a_full_duplex_response_goes_back_piece_by_piece_and_then_the_rpc_ends() -> None:
    machine = picked()
    answers = feed(machine, response_headers("text/event-stream"), response_body(b"data: a\n\n"))
    assert not machine.ended
    answers += feed(machine, response_body(b"data: b\n\n", end=True))
    assert kinds(answers) == ["response_headers", "response_body", "response_body"]
    assert streamed(answers, "response_body") == (b"data: a\n\ndata: b\n\n", [False, True])
    assert machine.ended


@pytest.mark.parametrize("mode", [STREAMED, BUFFERED, BUFFERED_PARTIAL])
def test_other_response_modes_get_the_plain_form(mode: int) -> None:
    machine = picked(mode)
    answers = feed(machine, response_headers(), response_body(b"x"), response_body(b"", end=True))
    assert kinds(answers) == ["response_headers", "response_body", "response_body"]
    assert not any(answer.response_body.response.HasField("body_mutation") for answer in answers)
    assert machine.ended


@pytest.mark.parametrize("mode", [STREAMED, DUPLEX])
def test_response_trailers_end_the_rpc(mode: int) -> None:
    machine = picked(mode)
    answers = feed(machine, response_headers(), response_body(b"x"), response_trailers())
    assert kinds(answers)[-1] == "response_trailers"
    assert machine.ended


def test_a_response_without_a_body_ends_with_its_headers() -> None:
    machine = picked()
    feed(machine, response_headers(status="204", end=True))
    assert machine.ended


def test_mode_none_never_ends_from_our_side() -> None:
    machine = picked(NONE)
    feed(machine, response_headers(end=True), response_trailers())
    assert not machine.ended
    machine.receive(None)
    assert machine.ended


def test_no_response_header_is_touched() -> None:
    (answer,) = feed(picked(), response_headers())
    assert not answer.response_headers.response.HasField("header_mutation")


def test_a_response_that_comes_before_the_pick_is_answered_and_no_pick_is_made() -> None:
    machine = exchange()
    machine.receive(request_headers(modes=config()))
    machine.receive(request_body(b"begin"))
    answers = parse(machine.receive(response_headers("text/plain", "413")))
    assert not machine.wants_pick
    answers += parse(machine.receive(response_body(b"too large", end=True)))
    assert kinds(answers) == ["response_headers", "response_body"]
    assert machine.ended
    assert not machine.refuse(no_endpoint("late"))


def test_the_served_endpoint_is_the_last_one_named() -> None:
    machine = picked()
    feed(machine, response_headers(served="10.0.0.9:8000, 10.0.0.2:8000"))
    assert machine.response.served == "10.0.0.2:8000"


# --- What the gateway says of the request


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, None),
        ([], ()),
        ("", ()),
        (["10.0.0.1:8000", " 10.0.0.2 "], ("10.0.0.1:8000", "10.0.0.2")),
        ("10.0.0.1:8000,10.0.0.2:8000", ("10.0.0.1:8000", "10.0.0.2:8000")),
        (["[2001:0db8::1]:80", "2001:db8::0:2", "[::1]"], ("[2001:db8::1]:80", "2001:db8::2", "::1")),
    ],
)
def test_subset_hints_in_every_form(hint: list[str] | str | None, expected: tuple[str, ...] | None) -> None:
    machine = exchange()
    machine.receive(request_headers(modes=config(), subset=hint))
    assert machine.head.subset == expected


def test_header_values_that_are_not_utf8_break_nothing() -> None:
    machine = exchange()
    feed(machine, request_headers(("x-odd", b"\xff\xfe"), end=True, modes=config()))
    assert machine.head.get("x-odd") == "\ufffd\ufffd"


ROUTING_HEADERS = [
    DESTINATION,
    f"{DESTINATION}-subset",
    f"{DESTINATION}-served",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-dynamo-worker-instance-id",
    "x-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-gateway-model-name-rewrite",
    "test-epp-endpoint-selection",
]


@pytest.mark.parametrize("modes", [config(NONE), config(STREAMED), config(BUFFERED), config()])
@pytest.mark.parametrize("end", [True, False])
def test_every_routing_header_is_set_or_removed_on_every_path(modes: ProtocolConfiguration, end: bool) -> None:
    machine = exchange()
    spoofed = [(name.title(), "169.254.169.254:80") for name in ROUTING_HEADERS]
    messages = [request_headers(*spoofed, end=end, modes=modes)]
    answers = feed(machine, *messages, *([] if end else [request_body(b"not json", end=True)]))
    (answer,) = [one for one in answers if destination(one) != ("", "")]
    mutation = getattr(answer, str(answer.WhichOneof("response"))).response.header_mutation
    handled = {option.header.key for option in mutation.set_headers} | set(mutation.remove_headers)
    assert set(ROUTING_HEADERS) <= handled
    assert not [name for name in ROUTING_HEADERS if name in machine.head.headers]


def test_trusted_headers_narrow_and_widen_what_a_client_may_set() -> None:
    objective = "x-gateway-inference-objective"
    standard = exchange()
    feed(standard, request_headers((objective, "high"), end=True))
    assert standard.head.get(objective) == "high"
    strict = exchange(trusted=frozenset({"x-data-parallel-rank"}))
    (answer,) = feed(strict, request_headers((objective, "high"), ("x-data-parallel-rank", "1"), end=True))
    removed = answer.request_headers.response.header_mutation.remove_headers
    assert strict.head.get(objective) == ""
    assert objective in removed
    assert strict.head.get("x-data-parallel-rank") == "1"
    assert "x-data-parallel-rank" not in removed


def test_no_hop_by_hop_header_and_no_length_is_ever_touched() -> None:
    answers = feed(exchange(), request_headers(("content-length", "2"), modes=config()), request_body(b"{}", end=True))
    mutation = answers[0].request_headers.response.header_mutation
    touched = {option.header.key for option in mutation.set_headers} | set(mutation.remove_headers)
    assert not touched & {"content-length", "transfer-encoding", "connection", "te", "upgrade", "keep-alive", "trailer"}


# --- Model rewrite


REWRITTEN = Decision(endpoint=PICK.endpoint, model="tuned")


def test_a_rewrite_changes_one_value_in_full_duplex_and_no_length() -> None:
    machine = exchange()
    machine.receive(request_headers(modes=config()))
    machine.receive(request_body(b'{"big": 9007199254740993, "mod'))
    machine.receive(request_body(b'el": "base"}', end=True))
    answers = parse(machine.answer(REWRITTEN))
    assert streamed(answers) == (b'{"big": 9007199254740993, "model": "tuned"}', [True])


def test_a_rewrite_of_a_buffered_body_sets_the_exact_length() -> None:
    machine = exchange()
    machine.receive(request_headers(modes=config(BUFFERED)))
    machine.receive(request_body(b'{"model": "a"}', end=True))
    (answer,) = parse(machine.answer(REWRITTEN))
    common = answer.request_body.response
    lengths = [o.header.raw_value for o in common.header_mutation.set_headers if o.header.key == "content-length"]
    assert common.body_mutation.body == b'{"model": "tuned"}'
    assert lengths == [b"18"]
    assert destination(answer) == THERE


def test_a_body_without_a_model_is_left_alone() -> None:
    machine = exchange()
    machine.receive(request_headers(modes=config()))
    machine.receive(request_body(b"\x1f\x8bnot json", end=True))
    assert streamed(parse(machine.answer(REWRITTEN)))[0] == b"\x1f\x8bnot json"
