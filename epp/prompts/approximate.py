"""Prefixes compared as text, where a prompt's token ids are not known.

Four bytes of UTF-8 stand for one token: about as long as real ones, equal for equal text, and a shared prefix of text
is a shared prefix of these. They live in namespaces of their own and so never match a worker's KV blocks.
An image, sound or video counts as a run of tokens made of a hash of what the request says of it: its bytes, its URL
(which is never fetched) or its identifier.
"""

from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from epp.prompts.asked import AnyPrompt, ChatPrompt, Message, StandInPrompt, TextPrompt
from epp.prompts.conversation import is_media
from epp.prompts.prompt import EMPTY_TOKENS, TokenIds

BYTES_PER_TOKEN = 4
MEDIA_TOKENS = 1024
"""Taken for one image, sound or video; engines make 64 to several thousand of an image."""
_MOST_CHARACTERS = 512 * 1024
_MOST_MESSAGES = 1000
"""More than this is not compared: it would hold the event loop."""


def text_namespace(namespace: str) -> str:
    """The namespace for text where tokens would be in `namespace`."""
    return f"text {namespace}"


def approximate_tokens(prompt: AnyPrompt | None) -> TokenIds:
    """The beginning of the prompt's text as stand-ins for token ids."""
    if isinstance(prompt, StandInPrompt):
        return prompt.tokens
    if isinstance(prompt, TextPrompt):
        if prompt.stand_ins is not None:
            return prompt.stand_ins
        text = prompt.text[:_MOST_CHARACTERS]
    elif isinstance(prompt, ChatPrompt):
        text = "\n".join(_text(message) for message in prompt.messages[:_MOST_MESSAGES])[:_MOST_CHARACTERS]
    else:
        return EMPTY_TOKENS
    data = text.encode("utf-8", "surrogatepass")
    return np.frombuffer(data, dtype=np.uint32, count=len(data) // BYTES_PER_TOKEN)


def _text(message: Message) -> str:
    """A message's text, with its media."""
    content = message.content or ""
    if not isinstance(content, str):
        content = "\n".join(part if isinstance(part, str) else _part(part) for part in content)
    return f"{message.role}\n{content}\n{message.tool_calls or ''}"


def _part(part: dict[str, Any]) -> str:
    if not is_media(part):
        return str(part.get("text", part))
    named = part.get("uuid") or part  # vLLM: media of one uuid are the same
    digest = blake2b(msgspec.json.encode(named), digest_size=16).hexdigest()
    return digest * (MEDIA_TOKENS * BYTES_PER_TOKEN // len(digest))
