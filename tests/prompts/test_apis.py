"""Every API's body becomes the conversation, texts or ids that the engine computes."""

import json

import pytest

from epp.prompts.apis import NotUnderstoodError, understand
from epp.prompts.asked import ChatPrompt, TextPrompt, TokensPrompt
from epp.prompts.conversation import conversation
from epp.prompts.prompt import Api


def ask(body, path="", content_type="application/json"):
    return understand(path, content_type, json.dumps(body).encode())


def seen(understood, parts=False):
    """What the template would see."""
    prompt = understood.asked.prompt
    return conversation(prompt.messages, parts=parts)


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": [USER]}, Api.CHAT),
        ({"messages": [USER], "system": "s", "max_tokens": 5}, Api.MESSAGES),
        ({"prompt": "x"}, Api.COMPLETIONS),
        ({"input": "x"}, Api.RESPONSES),
        ({"input": [USER]}, Api.RESPONSES),
        ({"input": ["a", "b"]}, Api.EMBEDDINGS),
        ({"input": [1, 2]}, Api.EMBEDDINGS),
        ({"input": "x", "encoding_format": "float"}, Api.EMBEDDINGS),
        ({"query": "q", "documents": ["d"]}, Api.RERANK),
        ({"text_1": "q", "text_2": ["d"]}, Api.RERANK),
        ({"token_ids": [1, 2], "sampling_params": {}}, Api.GENERATE),
        ({"text": "x", "sampling_params": {"max_new_tokens": 3}}, Api.GENERATE),
        ({"input_ids": [1]}, Api.GENERATE),
    ],
)
def test_without_a_path_the_body_tells_the_api(body, api):
    assert ask(body).api is api


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", Api.CHAT),
        ("/openai/v1/chat/completions?x=/completions", Api.CHAT),
        ("/v1/chat/completions/render", Api.CHAT),
        ("/v1/completions/", Api.COMPLETIONS),
        ("/v1/responses", Api.RESPONSES),
        ("/v1/messages", Api.MESSAGES),
        ("/v1/messages/count_tokens", Api.MESSAGES),
        ("/v1/embeddings", Api.EMBEDDINGS),
        ("/v2/rerank", Api.RERANK),
        ("/inference/v1/generate", Api.GENERATE),
        ("/generate", Api.GENERATE),
    ],
)
def test_the_path_tells_the_api(path, api):
    body = {"messages": [USER], "prompt": "x", "input": "x", "query": "q", "token_ids": [1]}
    assert ask(body, path).api is api


@pytest.mark.parametrize(
    ("path", "content_type", "body", "reason"),
    [
        ("/v1/models", "", b"{}", "unknown_path"),
        ("/v1/completions", "text/plain", b"{}", "not_json"),
        ("/v1/completions", "", b"", "no_body"),
        ("/v1/completions", "", b"{", "bad_json"),
        ("/v1/completions", "", b'{"prompt": 1}', "wrong_type"),
        ("", "", b'{"other": 1}', "unknown_shape"),
    ],
)
def test_what_is_not_understood_has_a_reason(path, content_type, body, reason):
    with pytest.raises(NotUnderstoodError, match=reason):
        understand(path, content_type, body)


def test_a_problem_names_the_place():
    with pytest.raises(NotUnderstoodError) as failure:
        ask({"messages": [USER, {"role": 5}]}, "/v1/chat/completions")
    assert failure.value.problem == "Expected `str`, got `int` - at `$.messages[1].role`"


def test_chat_messages_as_vllm_passes_them_on():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1.50, "a": "\\ud800"}'}}
    body = {
        "messages": [
            {"role": "system", "content": "x-anthropic-billing-header: abc\nrest"},
            {"role": "developer", "content": "d", "tools": [1]},
            {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, "b", {"type": "text", "text": ""}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "r", "refusal": None},
            {"role": "tool", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], "name": "n"},
            {"role": "assistant", "content": "y", "tool_calls": [], "unknown": 1},
        ]
    }
    parsed = {**call, "function": {"name": "f", "arguments": {"b": 1.5, "a": "\ud800"}}}
    assert seen(ask(body)) == [
        {"role": "system", "content": "rest"},
        {"role": "developer", "content": "d", "tools": [1]},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [parsed], "reasoning": "r", "reasoning_content": "r"},
        {"role": "tool", "content": "1\n2", "name": "n"},
        {"role": "assistant", "content": "y"},
    ]
    as_parts = seen(ask(body), parts=True)
    assert as_parts[2]["content"] == [
        {"type": "text", "text": "a", "x": 1},
        {"type": "text", "text": "b"},
        {"type": "text", "text": ""},
    ]
    assert as_parts[4]["content"] == "1\n2"


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "5", None])
def test_arguments_that_are_no_object_become_an_empty_one(arguments):
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert seen(ask({"messages": [message]}))[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_chat_options():
    body = {
        "messages": [USER],
        "model": "m",
        "reasoning_effort": "none",
        "chat_template_kwargs": {"k": 1, "documents": [{"a": "b"}]},
        "continue_final_message": True,
        "add_generation_prompt": False,
        "max_tokens": 1,
        "max_completion_tokens": 2,
        "stream": True,
        "cache_salt": "s",
        "priority": 3,
        "prompt_cache_key": "p",
        "nvext": {"agent_hints": {"osl": 9, "priority": 4}, "session_control": {"session_id": "x"}, "other": []},
    }
    asked = ask(body).asked
    prompt = asked.prompt
    assert prompt.variables == {"enable_thinking": False, "k": 1, "reasoning_effort": "none"}
    assert prompt.documents == [{"a": "b"}]
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    assert (asked.max_output_tokens, asked.expected_output_tokens, asked.stream) == (2, 9, True)
    assert (asked.cache_salt, asked.session, asked.priority) == ("s", "x", -4)


def test_token_ids_that_another_router_computed_are_taken():
    assert ask({"messages": [USER], "nvext": {"token_data": [7, 8]}}).asked.prompt == TokensPrompt(ids=[7, 8])


def test_responses_become_the_conversation_that_vllm_makes_of_them():
    body = {
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}],
        "max_output_tokens": 4,
        "reasoning": {"effort": "high"},
    }
    understood = ask(body, "/v1/responses")
    call = {"id": "c", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"}
    assert seen(understood) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "hm", "reasoning_content": "hm"},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
        {"role": "assistant", "content": "done"},
    ]
    prompt = understood.asked.prompt
    assert prompt.tools == [{"type": "function", "function": {"name": "f", "description": None, "parameters": {}}}]
    assert prompt.variables == {"enable_thinking": True, "reasoning_effort": "high"}


def test_a_response_that_goes_on_from_a_stored_one_has_no_known_prompt():
    assert ask({"input": "x", "previous_response_id": "r"}, "/v1/responses").asked.prompt is None


def test_an_unfinished_answer_is_continued():
    item = {"type": "message", "role": "assistant", "status": "incomplete", "content": [{"text": "so"}]}
    prompt = ask({"input": [USER, item]}, "/v1/responses").asked.prompt
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


def test_anthropic_messages_become_the_conversation_that_vllm_makes_of_them():
    body = {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "S"}],
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "calling"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "é"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"properties": {}}}],
        "metadata": {"user_id": "u"},
    }
    understood = ask(body, "/v1/messages")
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    assert seen(understood) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "calling",
            "tool_calls": [call],
            "reasoning": "hm",
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "3", "tool_call_id": "t"},
        {"role": "user", "content": "and?"},
    ]
    prompt = understood.asked.prompt
    parameters = {"properties": {}, "type": "object"}
    assert prompt.tools == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": parameters}}
    ]
    assert (understood.asked.max_output_tokens, understood.asked.session) == (5, "u")


def test_completions_embeddings_and_generate_take_texts_and_ids():
    batch = ask({"prompt": ["a", "b" * 8]}).asked
    assert (batch.prompt, batch.further_tokens) == (TextPrompt(text="a"), 2)
    assert ask({"prompt": []}).asked.prompt is None
    ids = ask({"input": [[1, 2], [3]]}, "/v1/embeddings").asked
    assert (ids.prompt, ids.further_tokens, ids.max_output_tokens) == (TokensPrompt(ids=[1, 2]), 1, 0)
    generate = ask({"text": "x", "sampling_params": {"max_new_tokens": 3}, "lora_path": "l"}, "/generate").asked
    assert (generate.prompt, generate.max_output_tokens, generate.adapter) == (TextPrompt(text="x"), 3, "l")
    vllm = ask({"token_ids": [4], "sampling_params": {"max_tokens": 2}, "features": None}).asked
    assert (vllm.prompt, vllm.max_output_tokens) == (TokensPrompt(ids=[4]), 2)
    assert ask({"token_ids": [4], "features": {"mm_hashes": {}}}).asked.prompt is None
    rerank = ask({"query": "q", "documents": ["d" * 4, {"text": "e" * 4}]}, "/rerank").asked
    assert (rerank.prompt, rerank.further_tokens) == (TextPrompt(text="q"), 2)
    chat = ask({"messages": [USER]}, "/v1/embeddings").asked.prompt
    assert isinstance(chat, ChatPrompt)
