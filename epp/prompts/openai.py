"""OpenAI bodies as vLLM reads them: chat completions and completions."""

from typing import Any

import msgspec

from epp.prompts.asked import AnyPrompt, Asked, ChatPrompt, Message, TextPrompt, TokensPrompt


class _Function(msgspec.Struct, kw_only=True, omit_defaults=False):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _Tool(msgspec.Struct, kw_only=True):
    function: _Function
    type: str = "function"
    defer_loading: bool | None = None


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None


class _Chat(_Common, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


class _Completions(_Common, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    add_special_tokens: bool = True


_CHAT = msgspec.json.Decoder(_Chat)
_COMPLETIONS = msgspec.json.Decoder(_Completions)


def read_chat(body: bytes | bytearray | memoryview) -> Asked:
    """`/v1/chat/completions`.

    Raises msgspec.MsgspecError with the path of what does not fit, RecursionError for endless nesting.
    """
    chat = _CHAT.decode(body)
    variables = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort is not None:
        variables.setdefault("enable_thinking", chat.reasoning_effort != "none")
        variables["reasoning_effort"] = chat.reasoning_effort
    documents = variables.pop("documents", None) if chat.documents is None else chat.documents
    prompt = ChatPrompt(
        messages=chat.messages,
        tools=None if chat.tools is None else [_tool(tool) for tool in chat.tools],
        documents=documents,
        template=chat.chat_template,
        variables=variables,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        add_special_tokens=chat.add_special_tokens,
    )
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    return _asked(chat, (prompt,), limit)


def read_completions(body: bytes | bytearray | memoryview) -> Asked:
    """`/v1/completions`: a string, token ids, or a batch of either. Raises as `read_chat`."""
    asked = _COMPLETIONS.decode(body)
    return _asked(asked, _prompts(asked.prompt, asked.add_special_tokens), asked.max_tokens)


def _prompts(prompt: str | list[str | int | list[int]] | None, add_special_tokens: bool) -> tuple[AnyPrompt, ...]:
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt, add_special_tokens=add_special_tokens),)
    if prompt and all(isinstance(item, int) for item in prompt):
        return (TokensPrompt(ids=prompt),)  # type: ignore[arg-type]  # just checked
    prompts: list[AnyPrompt] = []
    for item in prompt:
        if isinstance(item, str):
            prompts.append(TextPrompt(text=item, add_special_tokens=add_special_tokens))
        elif isinstance(item, list):
            prompts.append(TokensPrompt(ids=item))
        else:
            raise msgspec.ValidationError("Expected `str | array`, got `int` - at `$.prompt[...]`")
    return tuple(prompts)


def _tool(tool: _Tool) -> dict[str, Any]:
    """The tool with the keys, order and nulls that vLLM's own model gives it."""
    function: dict[str, Any] = {
        "name": tool.function.name,
        "description": tool.function.description,
        "parameters": tool.function.parameters,
    }
    defer = tool.function.defer_loading if tool.function.defer_loading is not None else tool.defer_loading
    if tool.function.strict is not None:
        function["strict"] = tool.function.strict
    if defer is not None:
        function["defer_loading"] = defer
    dumped: dict[str, Any] = {"type": tool.type, "function": function}
    if tool.defer_loading is not None:
        dumped["defer_loading"] = tool.defer_loading
    return dumped


def _asked(body: _Common, prompts: tuple[AnyPrompt, ...], limit: int | None) -> Asked:
    return Asked(
        model=body.model or "",
        prompts=prompts,
        stream=bool(body.stream),
        max_output_tokens=limit,
        cache_salt=body.cache_salt or "",
    )
