"""Embeddings, rerank and score: prompts without output."""

from typing import Any

import msgspec

from epp.prompts.asked import Asked, Body, ChatPrompt, Message, TextPrompt
from epp.prompts.common import CHARACTERS_PER_TOKEN, CommonBody, asked, text_or_tokens


class _Embeddings(CommonBody, kw_only=True):
    input: str | list[str | int | list[int]] | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None


class _Rerank(CommonBody, kw_only=True):
    query: Any = None
    documents: Any = None
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    items: Any = None


_EMBEDDINGS = msgspec.json.Decoder(_Embeddings, strict=False)
_RERANK = msgspec.json.Decoder(_Rerank, strict=False)


def read_embeddings(body: Body) -> Asked:
    """`/v1/embeddings`, `/pooling`, `/classify`."""
    embeddings = _EMBEDDINGS.decode(body)
    if embeddings.messages is not None:
        special = bool(embeddings.add_special_tokens)
        prompt = ChatPrompt(messages=embeddings.messages, add_generation_prompt=False, add_special_tokens=special)
        return asked(embeddings, prompt, 0)
    special = embeddings.add_special_tokens is not False
    first, further = text_or_tokens(embeddings.input, special)
    return asked(embeddings, first, 0, further_tokens=further)


def read_rerank(body: Body) -> Asked:
    """`/v1/rerank`, `/score`: one prompt for each document, joined to the query as the model's own rules say.

    Those rules are not ours to guess: the texts only tell how much work there is.
    """
    rerank = _RERANK.decode(body)
    first = next((value for value in (rerank.query, rerank.queries, rerank.text_1) if value is not None), None)
    second = next((value for value in (rerank.documents, rerank.items, rerank.text_2) if value is not None), None)
    texts = [text for value in (first, second) for text in _texts(value)]
    if not texts:
        return asked(rerank, None, 0)
    further = sum(map(len, texts[1:])) // CHARACTERS_PER_TOKEN
    return asked(rerank, TextPrompt(text=texts[0]), 0, further_tokens=further)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        text = value.get("text")
        return [text] if isinstance(text, str) else []
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []
