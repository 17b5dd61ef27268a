"""OpenAI's responses API, as vLLM turns it into a conversation (entrypoints/openai/responses, 0.33)."""

from typing import Any

import msgspec

from epp.prompts.asked import Asked, Body, ChatPrompt, Message
from epp.prompts.common import CommonBody, asked, template_tool
from epp.prompts.openai import with_effort

_UNFINISHED = ("in_progress", "incomplete")


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class _Tool(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Responses(CommonBody, kw_only=True):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    tools: list[_Tool] | None = None
    max_output_tokens: int | None = None
    reasoning: _Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_RESPONSES = msgspec.json.Decoder(_Responses, strict=False)


def read_responses(body: Body) -> Asked:
    """`/v1/responses`; a body that goes on from a stored response holds only the end of its prompt, and gives none."""
    responses = _RESPONSES.decode(body)
    if responses.input is None or responses.previous_response_id or responses.conversation:
        return asked(responses, None, responses.max_output_tokens)
    unfinished = _is_unfinished(responses.input)
    effort = responses.reasoning.effort if responses.reasoning else None
    prompt = ChatPrompt(
        messages=_messages(responses),
        tools=[_tool(tool) for tool in responses.tools if tool.type == "function"] if responses.tools else None,
        variables=with_effort(dict(responses.chat_template_kwargs or {}), effort),
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        of_responses=True,
    )
    return asked(responses, prompt, responses.max_output_tokens)


def _messages(responses: _Responses) -> list[Message]:
    messages = [Message(role="system", content=responses.instructions)] if responses.instructions else []
    if isinstance(responses.input, str):
        return [*messages, Message(role="user", content=responses.input)]
    items: list[Message] = []
    for item in responses.input or ():
        _take(items, item)
    return messages + items


def _take(messages: list[Message], item: dict[str, Any]) -> None:
    """Append an item as a message, or add it to the assistant message before it."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        messages.append(_message(role="tool", content=item.get("output"), tool_call_id=item.get("call_id")))
    elif kind == "function_call":
        _add_call(messages, item)
    elif kind == "reasoning":
        _add_once(messages, "reasoning", _first_text(item.get("content")) or _first_text(item.get("summary")))
    elif item.get("role") == "assistant":
        content = item.get("content")
        _add_once(messages, "content", content if isinstance(content, str) else _first_text(content))
    else:
        messages.append(msgspec.convert(item, Message))


def _add_call(messages: list[Message], item: dict[str, Any]) -> None:
    call = {
        "id": item.get("call_id"),
        "function": {"arguments": item.get("arguments"), "name": item.get("name")},
        "type": "function",
    }
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        messages.append(Message(role="assistant", tool_calls=[call]))
    else:
        last.tool_calls = [*(last.tool_calls or ()), call]


def _add_once(messages: list[Message], field: str, text: str) -> None:
    """Set `field` of the assistant message before, or begin another where it has one already."""
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant" and getattr(last, field) is None:
        setattr(last, field, text)
    else:
        messages.append(_message(role="assistant", **{field: text}))


def _message(**fields: Any) -> Message:
    return msgspec.convert(fields, Message)


def _first_text(parts: Any) -> str:
    first = parts[0] if isinstance(parts, list) and parts else ""
    text = first.get("text", "") if isinstance(first, dict) else first
    return text if isinstance(text, str) else ""


def _is_unfinished(items: str | list[dict[str, Any]]) -> bool:
    """Whether the last item is an assistant's message that the model goes on with."""
    if isinstance(items, str) or not items:
        return False
    last = items[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED


def _tool(tool: _Tool) -> dict[str, Any]:
    return template_tool(
        name=tool.name or "", description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
