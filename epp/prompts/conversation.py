"""Messages of a request in the form in which vLLM hands them to a chat template.

The rules are vLLM's (renderers/chat_utils, 0.33): content as one string or as parts, whichever the template reads;
arguments of tool calls as objects; one reasoning text under the old and the new name.
"""

import json
from typing import Any, TypeAlias

from epp.prompts.asked import Message

TemplateMessage: TypeAlias = dict[str, Any]

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_MEDIA_PARTS = frozenset(
    {
        *("image_url", "input_image", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds"),
        *("video_url", "video_embeds", "prompt_embeds"),
    }
)
_KNOWN_TEXT_KEYS = frozenset({"type", "text", "refusal", "thinking", "input_text", "output_text"})
_BILLING = "x-anthropic-billing-header"


class UnknownPartError(ValueError):
    """A content part that no template of vLLM gets to see."""


def conversation(messages: list[Message], *, parts: bool, media_mark: str = "") -> list[TemplateMessage]:
    """What the template sees as `messages`; `parts`: it reads content as a list of parts.

    Images, audio and video become text parts of `media_mark`; where content is one string, they stand before its
    text. Raises UnknownPartError for a part that is neither text nor media, and for media without a mark.
    """
    return [_message(message, parts, media_mark) for message in messages]


def _message(message: Message, parts: bool, media_mark: str) -> TemplateMessage:
    result: TemplateMessage = {"role": message.role, "content": _content(message, parts, media_mark)}
    if message.role == "assistant":
        _assistant(message, result)
    elif message.role == "tool" and message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    for key, value in (("name", message.name), ("task", message.task)):
        if isinstance(value, str):
            result[key] = value
    if message.role == "developer" and message.tools is not None:
        result["tools"] = message.tools
    return result


def _content(message: Message, parts: bool, media_mark: str) -> str | list[dict[str, Any]]:
    texts = _texts(message, media_mark)
    if not parts:
        if media_mark:
            texts.sort(key=lambda text: text["text"] != media_mark)
        return "\n".join(text["text"] for text in texts if text["text"])
    if message.role == "tool":  # templates that read parts still expect a string here
        return "\n".join(text["text"] for text in texts)
    return texts


def _texts(message: Message, media_mark: str) -> list[dict[str, Any]]:
    """The parts of a message as texts."""
    content = message.content
    if content is None:
        return []
    parts = [content] if isinstance(content, str) else content
    texts = [text for part in parts if (text := _text(part, media_mark)) is not None]
    return _without_billing(texts) if message.role == "system" else texts


def is_media(part: dict[str, Any]) -> bool:
    """Whether a part is an image, audio or video."""
    kind = part.get("type")
    return (isinstance(kind, str) and kind in _MEDIA_PARTS) or not _MEDIA_PARTS.isdisjoint(part)


def _text(part: str | dict[str, Any], media_mark: str) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        if media_mark and is_media(part):
            return {"type": "text", "text": media_mark}
        raise UnknownPartError(f"part of type {kind!r}")
    text = part.get("text") if kind in ("text", "input_text", "output_text") else part.get(kind)
    if text is None:
        return None
    if not isinstance(text, str):
        raise UnknownPartError(f"text of type {type(text).__name__}")
    return {"type": "text", "text": text, **{key: part[key] for key in part if key not in _KNOWN_TEXT_KEYS}}


def _without_billing(texts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the attribution line that Claude Code puts first: it differs in every request and vLLM drops it."""
    kept = []
    for text in texts:
        if text["text"].startswith(_BILLING):
            rest = text["text"].partition("\n")[2]
            if not rest:
                continue
            text = {**text, "text": rest}
        kept.append(text)
    return kept


def _assistant(message: Message, result: TemplateMessage) -> None:
    if message.tool_calls:
        result["tool_calls"] = [_call(call) for call in message.tool_calls]
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if reasoning is not None:
        result["reasoning"] = result["reasoning_content"] = reasoning


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise UnknownPartError("tool call that is no function")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> dict[str, Any]:
    """The arguments as an object; what is none becomes an empty one, as in vLLM."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, dict) else {}
