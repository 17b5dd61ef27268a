"""Anthropic's messages API, as vLLM turns it into a conversation (entrypoints/anthropic, 0.33)."""

import json
from typing import Any

import msgspec

from epp.prompts.asked import Asked, Body, ChatPrompt, Message, Part
from epp.prompts.common import template_tool
from epp.prompts.openai import with_effort

_BILLING = "x-anthropic-billing-header"


class _Block(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    thinking: str | None = None


class _Turn(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _OutputConfig(msgspec.Struct):
    effort: str | None = None


class _Messages(msgspec.Struct, kw_only=True):
    messages: list[_Turn]
    model: str | None = None
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    metadata: _Metadata | None = None
    output_config: _OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_MESSAGES = msgspec.json.Decoder(_Messages, strict=False)


def read_messages(body: Body) -> Asked:
    """`/v1/messages`."""
    asked = _MESSAGES.decode(body)
    effort = asked.output_config.effort if asked.output_config else None
    prompt = ChatPrompt(
        messages=_conversation(asked),
        tools=[_tool(tool) for tool in asked.tools] if asked.tools else None,
        variables=with_effort(dict(asked.chat_template_kwargs or {}), effort),
    )
    return Asked(
        model=asked.model or "",
        prompt=prompt,
        stream=bool(asked.stream),
        max_output_tokens=asked.max_tokens,
        session=(asked.metadata.user_id if asked.metadata else None) or "",
    )


def read_count_tokens(body: Body) -> Asked:
    """`/v1/messages/count_tokens`: the prompt is rendered but never computed, so it has no use for a cache."""
    return Asked(model=_MESSAGES.decode(body).model or "", max_output_tokens=0)


def _conversation(asked: _Messages) -> list[Message]:
    turns = [turn for turn in asked.messages if turn.role != "system"]
    system = _system_texts(asked.system)
    for turn in asked.messages:
        if turn.role == "system":
            system += _system_texts(turn.content)
    messages = [Message(role="system", content="".join(system))] if system else []
    for turn in turns:
        _take(messages, turn)
    return messages


def _system_texts(content: str | list[_Block] | None) -> list[str]:
    if not content:
        return []
    if isinstance(content, str):
        return [content]
    texts = [block.text for block in content if block.type == "text" and block.text]
    return [text for text in texts if not text.startswith(_BILLING)]


def _take(messages: list[Message], turn: _Turn) -> None:
    """Append a turn; the tool results in it become messages of their own before it."""
    role = "user" if turn.role in ("ctx", "msg") else turn.role
    message = Message(role=role)
    if isinstance(turn.content, str):
        message.content = turn.content
    else:
        _fill(message, turn.content, messages)
    if role != "user" or message.content is not None:
        messages.append(message)


def _fill(message: Message, blocks: list[_Block], messages: list[Message]) -> None:
    parts: list[str | Part] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block.type == "text" and block.text:
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image" and block.source:
            parts.append(_image(block.source))
        elif block.type == "thinking" and block.thinking is not None:
            reasoning.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(_call(block))
        elif block.type == "tool_result" and message.role == "user":
            messages += _results(block)
        elif block.type == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})
    message.reasoning = "".join(reasoning) if reasoning else None
    message.tool_calls = calls or None
    if parts:
        alone = parts[0] if len(parts) == 1 else None
        message.content = alone["text"] if isinstance(alone, dict) and alone["type"] == "text" else parts


def _call(block: _Block) -> dict[str, Any]:
    function = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
    return {"id": block.id, "type": "function", "function": function}


def _results(block: _Block) -> list[Message]:
    """A tool result: its text, then its images as a user's message, then its references to deferred tools."""
    items = block.content if isinstance(block.content, list) else []
    text = block.content if isinstance(block.content, str) else "\n".join(_texts(items))
    call = block.tool_use_id or ""
    messages = [Message(role="tool", tool_call_id=call, content=text)]
    images: list[str | Part] = [_image(item.get("source") or {}) for item in items if item.get("type") == "image"]
    if images:
        messages.append(Message(role="user", content=images))
    named = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    references: list[str | Part] = [{"type": "tool_reference", "name": name} for name in named if name]
    if references:
        messages.append(Message(role="tool", tool_call_id=call, content=references))
    return messages


def _texts(items: list[dict[str, Any]]) -> list[str]:
    return [str(item.get("text", "")) for item in items if item.get("type") == "text"]


def _image(source: dict[str, Any]) -> Part:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool(tool: _Tool) -> dict[str, Any]:
    schema = None if tool.input_schema is None else {**tool.input_schema}
    if schema is not None:
        schema.setdefault("type", "object")
    return template_tool(name=tool.name, description=tool.description, parameters=schema, strict=tool.strict)
