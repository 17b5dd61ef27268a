"""OpenAI's chat completions and completions, as vLLM reads them.

All readers of bodies raise msgspec.MsgspecError with the path of what does not fit, and RecursionError for endless
nesting.
"""

from typing import Any

import msgspec

from epp.prompts.asked import Asked, Body, ChatPrompt, Message
from epp.prompts.common import CommonBody, asked, template_tool, text_or_tokens


class _Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _Tool(msgspec.Struct, kw_only=True):
    function: _Function
    defer_loading: bool | None = None


class _Chat(CommonBody, kw_only=True):
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


class _Completions(CommonBody, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    max_tokens: int | None = None
    add_special_tokens: bool = True


_CHAT = msgspec.json.Decoder(_Chat, strict=False)
_COMPLETIONS = msgspec.json.Decoder(_Completions, strict=False)


def read_chat(body: Body) -> Asked:
    """`/v1/chat/completions`."""
    chat = _CHAT.decode(body)
    variables = dict(chat.chat_template_kwargs or {})
    documents = variables.pop("documents", None) if chat.documents is None else chat.documents
    prompt = ChatPrompt(
        messages=chat.messages,
        tools=None if chat.tools is None else [_tool(tool) for tool in chat.tools],
        documents=documents,
        template=chat.chat_template,
        variables=with_effort(variables, chat.reasoning_effort),
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        add_special_tokens=chat.add_special_tokens,
    )
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return asked(chat, prompt, limit)


def read_completions(body: Body) -> Asked:
    """`/v1/completions`: a string, token ids, or a batch of either."""
    completions = _COMPLETIONS.decode(body)
    prompt, further = text_or_tokens(completions.prompt, completions.add_special_tokens)
    return asked(completions, prompt, completions.max_tokens, further_tokens=further)


def with_effort(variables: dict[str, Any], effort: str | None) -> dict[str, Any]:
    """Template variables with the reasoning effort, which also switches thinking on or off where not said."""
    if effort is None:
        return variables
    return {"enable_thinking": effort != "none", **variables, "reasoning_effort": effort}


def _tool(tool: _Tool) -> dict[str, Any]:
    function = tool.function
    dumped = template_tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict,
    )
    defer = tool.defer_loading if function.defer_loading is None else function.defer_loading
    if defer is not None:
        dumped["function"]["defer_loading"] = defer
    if tool.defer_loading is not None:
        dumped["defer_loading"] = tool.defer_loading
    return dumped
