"""A model's tokenizer and chat template, read from the files that it is published with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from tokenizers import Tokenizer

from epp.prompts.chat_template import ChatTemplate

TokenIds = NDArray[np.uint32]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerFilesError(Exception):
    """A tokenizer directory or template file cannot be used; the text names the file."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What is needed to turn requests for one model into token ids."""

    tokenizer: "TextTokenizer"
    template: ChatTemplate | None
    """None: the model has no chat template, and chat requests are routed without tokens."""


class TextTokenizer:
    """A Hugging Face tokenizer that never truncates or pads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._before, self._after = _added_around(tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """All of `text`, exactly as the engine's tokenizer gives it. Releases the GIL while it works."""
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.uint32)
        return np.concatenate([self._before, ids, self._after]) if add_special_tokens else ids


def load_model_files(directory: Path, template_file: Path | None = None) -> ModelFiles:
    """Read `tokenizer.json`, `tokenizer_config.json` and the chat template.

    The template is `template_file`, else `chat_template.jinja`, else the one in `tokenizer_config.json`.
    Raises TokenizerFilesError.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerFilesError(f"{directory}: expected a directory with tokenizer.json")
    try:
        tokenizer = TextTokenizer(Tokenizer.from_str(path.read_text(encoding="utf-8")))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerFilesError(f"{path}: not a tokenizer: {error}") from error
    config = {**_read_json(directory / "special_tokens_map.json"), **_read_json(directory / "tokenizer_config.json")}
    return ModelFiles(tokenizer, load_template(directory, template_file, config))


def load_template(directory: Path, template_file: Path | None, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template of a model, or None where it has none. Raises TokenizerFilesError."""
    place = template_file or directory / "chat_template.jinja"
    text: str | None
    if template_file is not None or place.is_file():
        text = _read_text(place)
    else:
        place = directory / "tokenizer_config.json"
        text = _template_in_config(config.get("chat_template"))
    if text is None:
        return None
    try:
        return ChatTemplate(text, _named_tokens(config))
    except TemplateError as error:
        raise TokenizerFilesError(f"{place}: not a chat template: {error}") from error


def _template_in_config(value: Any) -> str | None:
    """The default template where a model has several by name."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that templates know by name."""
    tokens = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _added_around(tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """The ids that the tokenizer puts before and after a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            end = start + len(plain)
            return np.array(whole[:start], dtype=np.uint32), np.array(whole[end:], dtype=np.uint32)
    raise ValueError("adds special tokens inside a text")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise TokenizerFilesError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerFilesError(f"{path}: expected a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerFilesError(f"{path}: cannot be read: {error}") from error
