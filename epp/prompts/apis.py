"""Which API a request speaks: by its path, or by the shape of its body where the gateway does not show the path."""

import json
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from epp.prompts.anthropic import read_count_tokens, read_messages
from epp.prompts.asked import AnyPrompt, Asked, Body, ChatPrompt
from epp.prompts.conversation import is_media
from epp.prompts.engines import read_generate
from epp.prompts.openai import read_chat, read_completions
from epp.prompts.pooling import read_embeddings, read_rerank
from epp.prompts.prompt import Api
from epp.prompts.responses import read_responses

Read = Callable[[Body], Asked]

_PATHS: tuple[tuple[str, Api, Read], ...] = (
    ("/chat/completions", Api.CHAT, read_chat),
    ("/chat/completions/render", Api.CHAT, read_chat),
    ("/completions", Api.COMPLETIONS, read_completions),
    ("/completions/render", Api.COMPLETIONS, read_completions),
    ("/responses", Api.RESPONSES, read_responses),
    ("/messages", Api.MESSAGES, read_messages),
    ("/messages/count_tokens", Api.MESSAGES, read_count_tokens),
    ("/embeddings", Api.EMBEDDINGS, read_embeddings),
    ("/pooling", Api.EMBEDDINGS, read_embeddings),
    ("/classify", Api.EMBEDDINGS, read_embeddings),
    ("/rerank", Api.RERANK, read_rerank),
    ("/score", Api.RERANK, read_rerank),
    ("/generate", Api.GENERATE, read_generate),
)


class NotUnderstoodError(Exception):
    """A request that is routed by load alone; the text is the reason, one of a fixed few words."""

    def __init__(self, reason: str, problem: str = "") -> None:
        super().__init__(reason)
        self.problem = problem
        """What is wrong with the body and where; empty where an engine may understand what we do not."""


class Understood(msgspec.Struct, frozen=True):
    """A body and the API that it speaks."""

    api: Api
    asked: Asked


class _Shape(msgspec.Struct, kw_only=True):
    """The keys that tell the APIs apart."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    query: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text_1: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    queries: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    system: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    anthropic_version: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stop_sequences: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    instructions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    max_output_tokens: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    encoding_format: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    dimensions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_SHAPE = msgspec.json.Decoder(_Shape)


def understand(path: str, content_type: str, body: Body) -> Understood:
    """The request's API and what it asks for; an empty `path` means that the gateway does not show it.

    Raises NotUnderstoodError.
    """
    if not body:
        raise NotUnderstoodError("no_body")
    if content_type and "json" not in content_type.lower():
        raise NotUnderstoodError("not_json")
    try:
        api, read = _by_path(path) if path else _by_shape(body)
        asked = read(body)
        items = _media_items(asked.prompt)
        return Understood(api, replace(asked, media_items=items) if items else asked)
    except msgspec.ValidationError as error:
        problem = str(error)
        raise NotUnderstoodError("wrong_type", problem if "messages" in problem else "") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotUnderstoodError("bad_json", "" if _is_json(body) else str(error)) from None
    except RecursionError:
        raise NotUnderstoodError("bad_json") from None


def _media_items(prompt: AnyPrompt | None) -> int:
    """Images, sounds and videos of a conversation."""
    if not isinstance(prompt, ChatPrompt):
        return 0
    parts = (part for message in prompt.messages if isinstance(message.content, list) for part in message.content)
    return sum(1 for part in parts if not isinstance(part, str) and is_media(part))


def _is_json(body: Body) -> bool:
    """Whether engines may still read the body: Python's own parser takes NaN, lone surrogates and more."""
    try:
        json.loads(bytes(body))
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def _by_path(path: str) -> tuple[Api, Read]:
    plain = path.partition("?")[0].rstrip("/")
    for suffix, api, read in _PATHS:
        if plain.endswith(suffix):
            return api, read
    raise NotUnderstoodError("unknown_path")


def _by_shape(body: Body) -> tuple[Api, Read]:
    shape = _SHAPE.decode(body)
    has = {key for key in shape.__struct_fields__ if getattr(shape, key) is not msgspec.UNSET}
    if has & {"token_ids", "input_ids"} or ("text" in has and not has & {"messages", "prompt", "input"}):
        return Api.GENERATE, read_generate
    if has & {"query", "queries", "text_1"}:
        return Api.RERANK, read_rerank
    if "messages" in has:
        anthropic = has & {"system", "anthropic_version", "stop_sequences"}
        return (Api.MESSAGES, read_messages) if anthropic else (Api.CHAT, read_chat)
    if "prompt" in has:
        return Api.COMPLETIONS, read_completions
    if "input" in has:
        pooling = has & {"encoding_format", "dimensions"} or _is_batch(shape.input)
        return (Api.EMBEDDINGS, read_embeddings) if pooling else (Api.RESPONSES, read_responses)
    raise NotUnderstoodError("unknown_shape")


def _is_batch(value: msgspec.Raw | msgspec.UnsetType) -> bool:
    """Whether `input` is a list of texts or token ids, as no response has."""
    text = bytes(value) if isinstance(value, msgspec.Raw) else b""
    return text.startswith(b"[") and not text[1:].lstrip().startswith(b"{")
