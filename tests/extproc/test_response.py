"""What the bytes of a response show, wherever they are cut."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.metadata import Headers
from epp.extproc.response import ResponseWatch
from epp.scheduling.outcome import Usage

from .world import header_map


def sse(*events: object, newline: str = "\n") -> bytes:
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    return "".join(line + newline * 2 for line in lines).encode()


def delta(**fields: object) -> dict[str, object]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields}]}


USAGE = {
    "prompt_tokens": 120,
    "total_tokens": 150,
    "completion_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 96},
}
COUNTED = Usage(prompt_tokens=120, cached_tokens=96, completion_tokens=30)

ROLE = delta(role="assistant", content="")
CHAT = sse(ROLE, delta(content="Hé said \"usage\": {'x'}"), {"choices": [], "usage": USAGE}, "data: [DONE]")
CRLF = sse(ROLE, delta(content="Hi"), {"choices": [], "usage": USAGE}, "data: [DONE]", newline="\r\n")
NO_DONE = sse(ROLE, delta(content="Hi"), {"choices": [], "usage": USAGE})[:-2]
NULLS = sse(
    {**ROLE, "usage": None}, {**delta(content="Hi"), "usage": None}, {"choices": [], "usage": USAGE}, "data: [DONE]"
)
CONTINUOUS = sse(
    ROLE, {**delta(content="Hi"), "usage": {"prompt_tokens": 120, "completion_tokens": 1}}, {"usage": USAGE}
)
ANTHROPIC = sse(
    {"type": "message_start", "message": {"usage": {"input_tokens": 120, "cache_read_input_tokens": 96}}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "message_delta", "usage": {"output_tokens": 30}},
)
RESPONSES = sse(
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_text.delta", "delta": "Hi"},
    {
        "type": "response.completed",
        "response": {
            "usage": {"input_tokens": 120, "input_tokens_details": {"cached_tokens": 96}, "output_tokens": 30}
        },
    },
)
PLAIN = json.dumps({"choices": [{"message": {"content": 'the "usage": {"prompt_tokens": 1}'}}], "usage": USAGE})


def watch(content_type: str, status: str = "200", **headers: str) -> ResponseWatch:
    response = ResponseWatch()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response.headers(Headers(header_map([(":status", status), ("content-type", content_type), *named.items()])))
    return response


STREAMS = {
    "chat": CHAT,
    "crlf": CRLF,
    "no done": NO_DONE,
    "null usage in every event": NULLS,
    "continuous usage": CONTINUOUS,
    "anthropic": ANTHROPIC,
    "responses": RESPONSES,
}


@pytest.mark.parametrize("body", STREAMS.values(), ids=STREAMS)
def test_first_token_and_usage_of_a_stream_cut_at_every_byte(body: bytes) -> None:
    for cut in range(len(body) + 1):
        response = watch("text/event-stream; charset=utf-8")
        response.body(body[:cut])
        response.body(body[cut:])
        assert response.first_token
        assert response.usage == COUNTED, cut


@pytest.mark.parametrize("body", STREAMS.values(), ids=STREAMS)
@given(cuts=st.lists(st.integers(0, 700)))
def test_streams_in_any_pieces(body: bytes, cuts: list[int]) -> None:
    response = watch("text/event-stream")
    places = [0, *sorted(cuts), len(body)]
    for start, end in itertools.pairwise(places):
        response.body(body[start:end])
    assert response.first_token
    assert response.usage == COUNTED


def test_one_byte_at_a_time() -> None:
    response = watch("text/event-stream")
    for byte in CHAT:
        response.body(bytes([byte]))
    assert response.usage == COUNTED


@pytest.mark.parametrize("cut", range(0, len(PLAIN), 3))
def test_usage_of_a_plain_json_answer(cut: int) -> None:
    response = watch("application/json")
    response.body(PLAIN[:cut].encode())
    response.body(PLAIN[cut:].encode())
    assert response.usage == COUNTED


def test_the_first_token_is_generated_text_and_nothing_before_it() -> None:
    response = watch("text/event-stream")
    assert not response.first_token
    for early in (b": keep-alive\n\n", sse(ROLE), sse({"type": "ping"}), sse(delta(content=None, tool_calls=[]))):
        response.body(early)
        assert not response.first_token
    response.body(sse(delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}])))
    assert response.first_token


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "refusal"])
def test_any_generated_field_is_a_first_token(field: str) -> None:
    response = watch("text/event-stream")
    response.body(sse(delta(**{field: "x"})))
    assert response.first_token


def test_a_megabyte_in_one_event_changes_nothing() -> None:
    body = sse(ROLE, delta(content="x" * 1_000_000), {"choices": [], "usage": USAGE})
    response = watch("text/event-stream")
    for start in range(0, len(body), 16_384):
        response.body(body[start : start + 16_384])
    assert response.usage == COUNTED


def test_a_stream_of_an_unknown_form_counts_as_begun_after_a_while() -> None:
    response = watch("text/event-stream")
    for _ in range(70):
        response.body(b"data: " + b"0" * 1000 + b"\n\n")
    assert response.first_token


@pytest.mark.parametrize(
    ("content_type", "status", "encoding"),
    [("text/plain", "503", ""), ("application/json", "500", ""), ("application/json", "200", "gzip")],
)
def test_what_is_no_plain_success_is_not_looked_into(content_type: str, status: str, encoding: str) -> None:
    response = watch(content_type, status, content_encoding=encoding)
    response.body(PLAIN.encode())
    assert response.usage is None
    assert response.first_token


@given(st.lists(st.binary(max_size=200)))
def test_any_bytes_are_survived(chunks: list[bytes]) -> None:
    for content_type in ("text/event-stream", "application/json"):
        response = watch(content_type)
        for chunk in chunks:
            response.body(chunk)


@given(st.text(max_size=3), st.sampled_from(["", "x", "200 OK", "²", "-1"]))
def test_odd_response_headers_are_survived(content_type: str, status: str) -> None:
    assert watch(content_type, status).status is None


@pytest.mark.parametrize("usage", ['"many"', "[1]", "{", '{"prompt_tokens": "7"}', '{"prompt_tokens": -1}', "{}"])
def test_usage_of_another_shape_is_no_usage(usage: str) -> None:
    response = watch("application/json")
    response.body(f'{{"usage": {usage}}}'.encode() + b" " * 9000)
    assert response.usage is None


def test_a_usage_nested_beyond_reason_is_survived() -> None:
    response = watch("application/json")
    response.body(b'{"usage": ' + b'{"a":' * 1600)
    response.body(b" " * 9000 + b'"usage": {"prompt_tokens": 3}}')
    assert response.usage is None or response.usage.prompt_tokens == 3
