"""Large bodies are read in a process beside this one, to the same tokens, and never hold the event loop."""

import json
import shutil
from collections import Counter
from time import thread_time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.prompts.large import is_large
from epp.prompts.prompt import Api, TokenSource
from epp.prompts.reader import PromptReader
from epp.prompts.side_process import SideProcess
from epp.settings import Settings
from tests.prompts.real_tokenizers import MISTRAL

USER = {"role": "user", "content": "Say it, please."}
PROSE = "It was, as they say, a dark night; 1,000 stars, 12 moons. " * 4000
IMAGE = {
    "role": "user",
    "content": [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "b"}],
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES = [
    ("/v1/chat/completions", {"model": "m", "stream": True, "messages": [USER] * 40}),
    ("/v1/chat/completions", {"messages": [USER, IMAGE], "tools": [TOOL], "cache_salt": "s", "priority": 3}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "\ud800"}]}),
    ("/v1/chat/completions", {"messages": [{"role": 5}]}),
    ("/v1/chat/completions", {"messages": [USER], "chat_template": "{{ x }}"}),
    ("/v1/messages", {"max_tokens": 9, "messages": [USER], "system": "Be brief."}),
    ("/v1/completions", {"prompt": "é" * 3000}),
    ("/v1/completions", {"prompt": [5, 6, 7]}),
    ("/v1/completions", {"prompt": [5, -6]}),
    ("/v1/completions", {"prompt": []}),
    ("/v1/embeddings", {"input": ["one two", "three" * 4, "four"]}),
    ("/v1/embeddings", {"input": [[1, 2], [3]]}),
    ("", {"input": "x", "instructions": "y"}),
    ("/metrics", {"a": 1}),
]


@pytest.fixture(scope="module", params=["tokenizer", "text"])
def readers(request, model_directory):
    """One that reads everything here, and one that reads everything beside."""
    path = model_directory if request.param == "tokenizer" else None
    settings = Settings(tokenizer_path=path, tokenize_budget_ms=60_000, render_budget_ms=60_000)
    here = PromptReader.from_settings(settings, CollectorRegistry())
    beside = PromptReader.from_settings(settings.model_copy(update={"render_inline_bytes": 0}), CollectorRegistry())
    yield here, beside
    here.close()
    beside.close()


def padded(body):
    """`body` with a field that nobody reads, so that it is no small one."""
    return json.dumps({"x": "a" * 20_000, **body}).encode()


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_body_read_beside_gives_the_same_request(readers, path, body):
    before = [Counter(reader.status().without_tokens) for reader in readers]
    one, two = [await reader.read(path=path, content_type="", body=padded(body), request_id="r") for reader in readers]
    assert one.prompt.tokens.tolist() == two.prompt.tokens.tolist()
    for name in ("api", "model", "stream", "max_output_tokens", "priority", "problem", "size"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("namespace", "source", "unseen_tokens"):
        assert getattr(one.prompt, name) == getattr(two.prompt, name)
    after = [Counter(reader.status().without_tokens) for reader in readers]
    here, beside = (late - early for late, early in zip(after, before, strict=True))
    assert here == beside


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b"1," * 9000 + b"1]}",
        b'{"prompt": [' + b"1, " * 9000 + b"1]}",
        b'{"prompt": [' + b"1,\n " * 9000 + b"1]}",
        b'{"prompt": [' + b"1,  " * 9000 + b"1]}",
        b'{"prompt":[' + b"[]," * 9000 + b"[]]}",
        b'{"prompt":[' + b'"a",' * 9000 + b'""]}',
        b'{"prompt":[' + b'"\\\\",' * 9000 + b'""]}',
        b'{"x":{' + b'"a":1,' * 9000 + b'"b":1}}',
        json.dumps({"messages": [USER] * 1500}).encode(),
        json.dumps({"prompt": "a" * 300_000}).encode(),
    ],
)
def test_many_values_or_many_bytes_make_a_body_large(body):
    assert is_large(body, 256 * 1024)


@pytest.mark.parametrize(
    "text", [PROSE, json.dumps([{"a": "b", "c": [1, 2]}] * 3000), "中文，中文, 中文,中" * 3000, 'f(a,b,"c")\n' * 9000]
)
def test_text_does_not_make_a_body_large(text):
    body = json.dumps({"messages": [{"role": "user", "content": text[:200_000]}]}, ensure_ascii=False).encode()
    assert not is_large(body, 1024 * 1024)


async def test_text_beyond_what_can_be_used_is_only_counted(model_directory):
    settings = Settings(tokenizer_path=None, render_budget_ms=60_000)
    reader = PromptReader.from_settings(settings, CollectorRegistry())
    body = json.dumps({"prompt": "word " * 2_000_000}).encode()
    request = await reader.read(path="/v1/completions", content_type="", body=body, request_id="r")
    reader.close()
    assert (request.api, request.prompt.source) == (Api.COMPLETIONS, TokenSource.TEXT)
    assert 0 < len(request.prompt.tokens) <= 1 << 20


BOMBS = {
    "ids": ("/v1/completions", b'{"prompt":[' + b"1234," * 1_000_000 + b"1]}"),
    "batch": ("/v1/embeddings", b'{"input":[' + b'"x",' * 1_000_000 + b'"x"]}'),
    "keys": (
        "/v1/chat/completions",
        b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1'
        + b"".join(b',"%d":1' % i for i in range(500_000))
        + b"}}",
    ),
    "text": ("/v1/completions", json.dumps({"prompt": "a b " * 2_000_000}).encode()),
    "messages": ("/v1/chat/completions", json.dumps({"messages": [USER] * 100_000}).encode()),
    "nested": ("/v1/completions", b'{"prompt":' + b"[" * 4_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_no_body_costs_the_event_loop_much(readers, name):
    """Processor time of the loop's thread, which other work on the machine does not lengthen."""
    path, body = BOMBS[name]
    _, beside = readers
    await beside.read(path="/v1/completions", content_type="", body=padded({"prompt": "a"}), request_id="")
    start = thread_time()
    request = await beside.read(path=path, content_type="", body=body, request_id="")
    assert thread_time() - start < 0.5
    assert request.size == len(body)
    assert isinstance(request.prompt.tokens, np.ndarray)


async def test_a_large_conversation_of_a_model_built_by_code_gives_the_same_tokens(tmp_path):
    shutil.copy(MISTRAL / "tekken_240911.json", tmp_path / "tekken.json")
    settings = Settings(tokenizer_path=tmp_path, tokenize_budget_ms=60_000, render_budget_ms=60_000)
    here, beside = [
        PromptReader.from_settings(settings.model_copy(update={"render_inline_bytes": bytes_}), CollectorRegistry())
        for bytes_ in (1 << 22, 0)
    ]
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.50}'}}
    turns = [
        {"role": "user", "content": PROSE},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": PROSE[::-1], "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "so it is"},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]
    for body in ({"messages": turns, "tools": [TOOL]}, {"messages": [USER, IMAGE]}):
        one, two = [
            await reader.read(path="/v1/chat/completions", content_type="", body=padded(body), request_id="r")
            for reader in (here, beside)
        ]
        assert one.prompt.source is two.prompt.source
        assert one.prompt.tokens.tolist() == two.prompt.tokens.tolist()
    assert here.status().read == {"tokenizer": 1, "text": 1}
    for messages in ([USER] * 20_000, [USER | {"content": "word " * 500_000}]):
        body = json.dumps({"messages": messages}).encode()
        request = await beside.read(path="/v1/chat/completions", content_type="", body=body, request_id="r")
        assert request.prompt.source is TokenSource.TEXT
    assert beside.status().without_tokens == {"not_text": 1, "too_large": 2}
    here.close()
    beside.close()


async def test_a_large_body_whose_pick_needs_no_tokens_is_understood_and_not_rendered(readers):
    _, beside = readers
    jobs = []
    body = padded({"model": "m", "stream": True, "messages": [USER] * 40})
    process = beside._process

    async def counted(job, data=b""):
        jobs.append(type(job).__name__)
        return await SideProcess.answer(process, job, data)

    process.answer = counted
    try:
        request = await beside.read(
            path="/v1/chat/completions", content_type="", body=body, request_id="r", tokens=False
        )
    finally:
        del process.answer
    assert jobs == ["Understand"]
    assert (request.api, request.model, request.stream, len(request.prompt.tokens)) == (Api.CHAT, "m", True, 0)
