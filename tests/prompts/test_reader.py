"""A request becomes the token ids that the engine will compute, and odd requests become none."""

import json

import numpy as np
import pytest
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from epp.prompts.approximate import MEDIA_TOKENS
from epp.prompts.prompt import Api, TokenSource
from epp.prompts.reader import PromptReader
from epp.settings import Settings, SettingsError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def registry():
    return CollectorRegistry()


@pytest.fixture(scope="module")
def reader(model_directory, registry):
    reader = PromptReader.from_settings(Settings(tokenizer_path=model_directory, tokenize_budget_ms=60_000), registry)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def plain(model_directory):
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))


async def read(reader, body, path=CHAT, content_type="application/json"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await reader.read(path=path, content_type=content_type, body=body, request_id="r1")


async def test_a_chat_is_rendered_and_tokenised(reader, plain):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "go on"},
    ]
    request = await read(reader, {"model": "m", "messages": messages, "stream": True, "max_completion_tokens": 7})
    text = (
        "<｜begin▁of▁sentence｜>Be brief.\n\n<｜User｜>one\ntwo<｜Assistant｜>yes<｜end▁of▁sentence｜>"
        "<｜User｜>go on<｜Assistant｜>"
    )
    assert request.prompt.tokens.tolist() == plain.encode(text, add_special_tokens=False).ids
    assert request.prompt.tokens.dtype == np.uint32
    assert request.prompt.source is TokenSource.TOKENIZER
    assert (request.api, request.model, request.stream, request.max_output_tokens) == (Api.CHAT, "m", True, 7)


async def test_tools_reach_the_template_as_the_engine_dumps_them(reader, plain):
    tool = {"function": {"parameters": {"b": 1, "a": 1.0}, "name": "f", "x": 1}, "type": "function"}
    request = await read(reader, {"messages": [{"role": "user", "content": "é"}], "tools": [tool]})
    dumped = '{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 1.0}}}'
    text = f"<｜begin▁of▁sentence｜># Tools\n{dumped}\n<｜User｜>é<｜Assistant｜>"
    assert request.prompt.tokens.tolist() == plain.encode(text, add_special_tokens=False).ids


async def test_a_long_chat_is_encoded_in_a_thread_to_the_same_ids(reader, plain):
    text = "All work and no play. " * 2000
    request = await read(reader, {"messages": [{"role": "user", "content": text}]})
    expected = plain.encode(f"<｜begin▁of▁sentence｜><｜User｜>{text}<｜Assistant｜>", add_special_tokens=False).ids
    assert request.prompt.tokens.tolist() == expected


async def test_completions_take_text_and_token_ids(reader, plain):
    text = await read(reader, {"prompt": "hello"}, COMPLETIONS)
    assert text.prompt.tokens.tolist() == plain.encode("hello").ids
    ids = await read(reader, {"prompt": [1, 2, 3]}, COMPLETIONS)
    assert (ids.prompt.tokens.tolist(), ids.prompt.source) == ([1, 2, 3], TokenSource.REQUEST)
    batch = await read(reader, {"prompt": [[4, 5], [6]]}, COMPLETIONS)
    assert batch.prompt.tokens.tolist() == [4, 5]


async def test_a_salt_makes_a_namespace(reader):
    body = {"messages": [{"role": "user", "content": "x"}]}
    plain, salted = await read(reader, body), await read(reader, body | {"cache_salt": "s"})
    assert plain.prompt.namespace == ""
    assert salted.prompt.namespace != ""


async def test_a_request_is_understood_without_its_prompt(reader):
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "word " * 99}]}).encode()
    request = await reader.read(path=CHAT, content_type="application/json", body=body, request_id="r1", tokens=False)
    assert (request.api, request.model, request.stream, request.size) == (Api.CHAT, "m", True, len(body))
    assert not len(request.prompt.tokens)
    assert reader.status().without_tokens["not_needed"]


async def test_a_body_may_be_a_view(reader):
    body = memoryview(bytearray(b'{"prompt": "hello"}'))
    request = await reader.read(path=COMPLETIONS, content_type="application/json", body=body, request_id="r")
    assert len(request.prompt.tokens) > 0


ODD = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"messages": 5}',
    b'{"messages": []}',
    b'{"messages": [{"role": "user", "content": {"a": 1}}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "alien", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}',
    b'{"messages": [{"role": "assistant", "tool_calls": [{}]}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": 1}}',
    b'{"prompt": [1, "a"]}',
    b'{"prompt": [-1]}',
    b'{"prompt": [99999999999999999999999]}',
    b'{"prompt": null, "temperature": NaN}',
    b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/models", "", "/v1/audio/speech"])
async def test_odd_bodies_never_fail(reader, body, path):
    request = await read(reader, body, path)
    assert (request.id, request.size) == ("r1", len(body))


@settings(deadline=None)
@given(body=st.binary(max_size=200), path=st.text(max_size=30), content_type=st.text(max_size=20))
async def test_nothing_that_a_client_sends_fails(reader, body, path, content_type):
    request = await read(reader, body, path, content_type)
    assert (request.id, request.size) == ("r1", len(body))


async def test_other_content_types_are_routed_unread(reader):
    request = await read(reader, b'{"prompt": "x"}', COMPLETIONS, "text/plain")
    assert request.api is Api.UNKNOWN


async def test_without_a_tokenizer_requests_are_understood_and_that_is_said_once():
    with structlog.testing.capture_logs() as said:
        reader = PromptReader.from_settings(Settings(), CollectorRegistry())
        for _ in range(3):
            request = await read(reader, {"model": "m", "messages": [{"role": "user", "content": "x"}]})
        reader.close()
    assert (request.model, request.prompt.source) == ("m", TokenSource.TEXT)
    assert reader.status().without_tokens == {"no_tokenizer": 3}
    assert reader.status().models == ()
    assert [line["event"] for line in said] == ["no tokenizer: prefixes are compared as text"]


async def test_without_a_tokenizer_a_shared_beginning_is_a_shared_prefix_of_its_own_namespace():
    reader = PromptReader.from_settings(Settings(), CollectorRegistry())
    text = "All work and no play makes Jack a dull boy. " * 20
    long, short = [await read(reader, {"prompt": text[:size], "model": "m"}, COMPLETIONS) for size in (800, 400)]
    ids = await read(reader, {"prompt": [1, 2]}, COMPLETIONS)
    reader.close()
    assert long.prompt.tokens[:100].tolist() == short.prompt.tokens.tolist()
    assert long.prompt.namespace == short.prompt.namespace != ids.prompt.namespace


async def test_metrics_say_where_tokens_came_from(reader, registry):
    await read(reader, {"prompt": "hello"}, COMPLETIONS)
    labels = {"api": "completions", "source": "tokenizer"}
    assert registry.get_sample_value("epp_prompts_total", labels) >= 1
    await read(reader, b"{", COMPLETIONS)
    assert registry.get_sample_value("epp_prompts_without_tokens_total", {"reason": "bad_json"}) >= 1


def test_a_wrong_tokenizer_directory_names_the_setting(tmp_path, model_directory):
    def fails(**settings):
        with pytest.raises(SettingsError) as failure:
            PromptReader.from_settings(Settings(**settings), CollectorRegistry())
        return str(failure.value)

    assert "EPP_TOKENIZER_PATH" in fails(tokenizer_path=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "not a tokenizer" in fails(tokenizer_path=tmp_path)
    (tmp_path / "bad.jinja").write_text("{% for %}")
    bad = fails(tokenizer_path=model_directory, chat_template=tmp_path / "bad.jinja")
    assert "EPP_CHAT_TEMPLATE" in bad
    assert "bad.jinja" in bad
    assert "EPP_CHAT_TEMPLATE" in fails(tokenizer_path=model_directory, chat_template=tmp_path / "missing.jinja")
    assert "EPP_TOKENIZER_PATH" in fails(chat_template=tmp_path / "bad.jinja")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


async def test_a_prompt_with_an_image_is_known_up_to_the_image(reader, plain):
    messages = [
        {"role": "user", "content": "first " * 2000},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "what is this?"}, IMAGE]},
    ]
    request = await read(reader, {"messages": messages})
    first = "first " * 2000
    text = f"<｜begin▁of▁sentence｜><｜User｜>{first}<｜Assistant｜>yes<｜end▁of▁sentence｜><｜User｜>"
    assert request.prompt.tokens.tolist() == plain.encode(text, add_special_tokens=False).ids
    assert MEDIA_TOKENS < request.prompt.unseen_tokens < 2 * MEDIA_TOKENS
    assert reader.status().without_tokens["media"] >= 1


@pytest.mark.parametrize("with_tokenizer", [True, False])
async def test_a_prompt_that_begins_with_an_image_is_compared_by_its_content(reader, with_tokenizer):
    """No rule tells how many tokens an engine makes of it, so what stands behind it is compared as text."""
    without = PromptReader.from_settings(Settings(), CollectorRegistry())
    using = reader if with_tokenizer else without

    async def tokens(image, text):
        body = {"messages": [{"role": "user", "content": [image, {"type": "text", "text": text}]}]}
        request = await read(using, body)
        assert request.prompt.source is TokenSource.TEXT
        return request.prompt.tokens.tolist()

    def image(data, **more):
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} | more

    one, same, longer = [await tokens(image("A" * 100_000), text) for text in ("what?", "what?", "what? and why?")]
    other = await tokens(image("A" * 99_999 + "B"), "what?")
    assert one == same
    assert longer[: len(one) - 2] == one[:-2]
    assert one[:8] != other[:8]
    assert MEDIA_TOKENS < len(one) < 1.1 * MEDIA_TOKENS
    named = [await tokens(image(data, uuid="u"), "what?") for data in ("A", "B")]
    assert named[0] == named[1]
    without.close()


async def test_a_late_tokenizer_that_knows_nothing_of_a_prompt_leaves_it_to_text(model_directory):
    settings = Settings(tokenizer_path=model_directory, tokenize_budget_ms=0)
    reader = PromptReader.from_settings(settings, CollectorRegistry())
    text = "All work and no play makes Jack a dull boy. " * 2000
    request = await read(reader, {"prompt": text}, COMPLETIONS)
    assert request.prompt.source is TokenSource.TEXT
    assert len(request.prompt.tokens) == len(text) // 4
    assert request.prompt.unseen_tokens == 0
    assert reader.status().without_tokens == {"late": 1}
    reader.close()


async def test_a_full_queue_leaves_prompts_to_text(model_directory):
    settings = Settings(tokenizer_path=model_directory, tokenize_queue_bytes=10_000)
    reader = PromptReader.from_settings(settings, CollectorRegistry())
    request = await read(reader, {"prompt": "word " * 4000}, COMPLETIONS)
    assert (request.prompt.source, len(request.prompt.tokens)) == (TokenSource.TEXT, 5000)
    assert reader.status().without_tokens == {"queue_full": 1}
    reader.close()


async def test_a_conversation_rendered_apart_gives_the_same_ids(reader, model_directory):
    settings = Settings(
        tokenizer_path=model_directory, render_inline_bytes=0, tokenize_budget_ms=60_000, render_budget_ms=60_000
    )
    apart = PromptReader.from_settings(settings, CollectorRegistry())
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": [1.0, None], "a": "é"}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.50}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, "two"]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    for body in ({"messages": messages, "tools": [tool]}, {"messages": [{"role": "user", "content": ["a", IMAGE]}]}):
        here, there = await read(reader, body), await read(apart, body)
        assert there.prompt.tokens.tolist() == here.prompt.tokens.tolist()
        assert there.prompt.source is here.prompt.source
    apart.close()
