"""What no client should send: refused with its place where the engine would refuse too, else routed; nothing stalls."""

import asyncio
import json
import math
from time import perf_counter

import pytest
from prometheus_client import CollectorRegistry

from epp.prompts.prompt import Api, TokenSource
from epp.prompts.reader import PromptReader
from epp.settings import Settings

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def reader(model_directory):
    settings = Settings(tokenizer_path=model_directory, tokenize_budget_ms=60_000, render_budget_ms=60_000)
    reader = PromptReader.from_settings(settings, CollectorRegistry())
    yield reader
    reader.close()


async def read(reader, body, path=CHAT):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await reader.read(path=path, content_type="application/json", body=body, request_id="r")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"messages": [', "truncated"),
        (b'{"messages": []} x', "trailing"),
        ({"messages": "x"}, "$.messages"),
        ({"messages": [USER, {"content": "x"}]}, "$.messages[1]"),
        ({"messages": [{"role": "user", "content": 5}]}, "$.messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "$.messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "$.messages[0].tool_calls"),
        ({"model": "m"}, "messages"),
    ],
)
async def test_what_the_engine_refuses_has_a_problem_with_its_place(reader, body, place):
    request = await read(reader, body)
    assert place in request.problem
    assert request.api is Api.UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 400 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "x": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
        {"messages": [USER], "tools": "none"},
        {"messages": [USER], "max_tokens": "many"},
        {"messages": [USER], "temperature": math.inf},
        {"messages": []},
        {"messages": [{"role": "alien", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        {"messages": [USER], "chat_template": "{% for a in range(99999999) %}{% endfor %}"},
    ],
)
async def test_what_an_engine_may_take_is_routed(reader, body):
    request = await read(reader, body)
    assert request.problem == ""
    assert request.prompt.source is not TokenSource.TOKENIZER or len(request.prompt.tokens) > 0


async def test_numbers_and_flags_in_strings_are_read_as_the_engine_reads_them(reader):
    request = await read(reader, {"messages": [USER], "max_tokens": "7", "stream": "true"})
    assert (request.max_output_tokens, request.stream, request.prompt.source) == (7, True, TokenSource.TOKENIZER)


async def test_of_two_equal_keys_the_last_counts(reader):
    two = await read(reader, b'{"prompt": "a", "prompt": "hello"}', "/v1/completions")
    assert (
        two.prompt.tokens.tolist()
        == (await read(reader, {"prompt": "hello"}, "/v1/completions")).prompt.tokens.tolist()
    )


async def test_lone_surrogates_in_arguments_are_routed_as_text(reader):
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    request = await read(reader, {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]})
    assert request.prompt.source is TokenSource.TEXT


@pytest.mark.slow
async def test_a_hundred_thousand_messages_are_rendered_apart(reader):
    body = json.dumps({"messages": [USER] * 100_000}).encode()
    longest = 0.0

    async def heartbeat():
        nonlocal longest
        while True:
            start = perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, perf_counter() - start)

    beating = asyncio.ensure_future(heartbeat())
    request = await read(reader, body)
    beating.cancel()
    assert request.prompt.source is TokenSource.TOKENIZER
    assert len(request.prompt.tokens) > 100_000
    assert longest < 30
