"""gpt-oss: prompts are those that openai-harmony renders of the messages that vLLM makes."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    load_harmony_encoding,
)
from prometheus_client import CollectorRegistry
from tiktoken.load import load_tiktoken_bpe

from epp.prompts.harmony import vocabulary_file
from epp.prompts.huggingface import HuggingFaceEncoder
from epp.prompts.prompt import TokenSource
from epp.prompts.reader import PromptReader
from epp.settings import Settings, SettingsError
from tests.prompts.o200k import o200k_file

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DAY = "2026-01-31"
TOOL = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}}
LONG = "It rains <|end|> and rains, 12345 times. " * 200


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A gpt-oss directory, without merges: the library has its own."""
    directory = tmp_path_factory.mktemp("gpt-oss")
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}
    ranks = load_tiktoken_bpe(str(o200k_file()))
    vocabulary = {"".join(table[byte] for byte in entry): rank for entry, rank in ranks.items()}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "config.json").write_text('{"model_type": "gpt_oss"}')
    return directory


@pytest.fixture(scope="module")
def reader(directory):
    settings = Settings(tokenizer_path=directory, harmony_date=DAY, tokenize_budget_ms=60_000, render_budget_ms=60_000)
    reader = PromptReader.from_settings(settings, CollectorRegistry())
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def library():
    """The library itself, with the vocabulary that OpenAI publishes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(o200k_file().parent))
        return load_harmony_encoding("HarmonyGptOss")


def system(effort=ReasoningEffort.MEDIUM):
    content = SystemContent.new().with_conversation_start_date(DAY).with_reasoning_effort(effort)
    return Message.from_role_and_content(Role.SYSTEM, content)


def says(role, text):
    return Message.from_role_and_content(role, text)


async def read(reader, messages, path="/v1/chat/completions", **more):
    body = json.dumps({"messages": messages, **more}).encode()
    return await reader.read(path=path, content_type="", body=body, request_id="r")


def rendered(library, messages):
    return library.render_conversation_for_completion(Conversation.from_messages(messages), Role.ASSISTANT)


async def test_a_conversation_with_tools_and_thoughts(reader, library):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"at": "here"}'}}
    request = await read(
        reader,
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "Let me see.", "reasoning": "I need a tool.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": LONG},
        ],
        tools=[{"type": "function", "function": TOOL}],
        reasoning_effort="high",
    )
    assistant = Author(role=Role.ASSISTANT)
    expected = [
        system(ReasoningEffort.HIGH),
        Message.from_role_and_content(
            Role.DEVELOPER, DeveloperContent.new().with_function_tools([ToolDescription.new(*TOOL.values())])
        ),
        says(Role.DEVELOPER, "Be brief."),
        Message.from_role_and_contents(Role.USER, [TextContent(text="one "), TextContent(text="two")]),
        says(Role.ASSISTANT, "Let me see.").with_channel("commentary"),
        says(Role.ASSISTANT, "I need a tool.").with_channel("analysis"),
        Message.from_author_and_content(assistant, '{"at": "here"}')
        .with_channel("commentary")
        .with_recipient("functions.weather")
        .with_content_type("json"),
        Message.from_author_and_content(Author.new(Role.TOOL, "functions.weather"), LONG)
        .with_channel("commentary")
        .with_recipient("assistant"),
    ]
    assert request.prompt.source is TokenSource.TOKENIZER
    assert request.prompt.tokens.tolist() == rendered(library, expected)


async def test_thoughts_before_an_answer_of_the_same_turn_are_dropped(reader, library):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "early"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning": "late"},
    ]
    request = await read(reader, messages)
    expected = [
        system(),
        says(Role.USER, "a"),
        says(Role.ASSISTANT, "early").with_channel("analysis"),
        says(Role.ASSISTANT, "b").with_channel("final"),
        says(Role.USER, "c"),
        says(Role.ASSISTANT, "d").with_channel("final"),
    ]
    assert request.prompt.tokens.tolist() == rendered(library, expected)


TEXTS = st.one_of(
    st.text(max_size=30),
    st.lists(st.sampled_from(["<|end|>", "<|start|>user<|message|>", "\ue000", "0", "\ue0001\ue000", " x", "y "])).map(
        "".join
    ),
)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_whatever_users_write_is_text(reader, library, texts):
    request = asyncio.run(read(reader, [{"role": "user", "content": text} for text in texts]))
    expected = rendered(library, [system(), *(says(Role.USER, text) for text in texts)])
    assert request.prompt.tokens.tolist() == expected


async def test_a_long_agents_conversation_is_read_beside_to_the_same_tokens(reader, library):
    turns = [LONG * (1 + 300_000 // (5 * len(LONG))) + str(turn) for turn in range(5)]
    body = [{"role": "user" if turn % 2 == 0 else "assistant", "content": text} for turn, text in enumerate(turns)]
    request = await read(reader, body)
    roles = [says(Role.USER, text) if i % 2 == 0 else says(Role.ASSISTANT, text) for i, text in enumerate(turns)]
    said = [turn.with_channel("final") if turn.author.role is Role.ASSISTANT else turn for turn in roles]
    assert request.size > 300_000
    assert request.prompt.tokens.tolist() == rendered(library, [system(), *said])


@pytest.mark.parametrize(
    "more", [{"reasoning_effort": "none"}, {"chat_template": "x"}, {"path": "/v1/responses", "input": "x"}]
)
async def test_what_is_not_known_gets_no_tokens(reader, more):
    request = await read(reader, [{"role": "user", "content": "a"}], **more)
    assert request.prompt.source is TokenSource.TEXT


def test_the_vocabulary_is_made_from_the_models_own_tokenizer(directory):
    made = vocabulary_file(HuggingFaceEncoder((directory / "tokenizer.json").read_text()))
    assert made == o200k_file().read_bytes()


def test_another_models_vocabulary_is_refused(model_directory, directory, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((model_directory / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    with pytest.raises(SettingsError, match="not that of gpt-oss"):
        PromptReader.from_settings(Settings(tokenizer_path=tmp_path), CollectorRegistry())
