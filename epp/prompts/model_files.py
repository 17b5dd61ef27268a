"""The files that a model is published with: tokenizer and chat template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from epp.prompts.chat_template import ChatTemplate
from epp.prompts.huggingface import HuggingFaceEncoder, load_encoder

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ModelFilesError(Exception):
    """A file of a model cannot be used; the text names it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class UnknownKindError(ModelFilesError):
    """Files of a model whose prompts nothing here can build; the engine can."""


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The templates of a model: one for requests with tools where it has such, and one for all others."""

    default: ChatTemplate
    tool_use: ChatTemplate | None = None

    def for_request(self, has_tools: bool) -> ChatTemplate:
        """The template that the engine would choose."""
        return self.tool_use if has_tools and self.tool_use is not None else self.default


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What is needed to turn requests for one model into token ids."""

    encoder: HuggingFaceEncoder
    templates: ChatTemplates | None
    """None: the model has no chat template, and chat requests are routed without tokens."""
    special_tokens: Mapping[str, str]
    """The special tokens that templates know by name."""


def load_model_files(directory: Path, template_file: Path | None = None) -> ModelFiles:
    """Read `tokenizer.json`, `tokenizer_config.json` and the chat template.

    The template is `template_file`, else `chat_template.jinja`, else the one in `tokenizer_config.json`.
    Raises ModelFilesError.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelFilesError(directory, "expected a directory with tokenizer.json")
    try:
        encoder = load_encoder(_read_text(path))
    except ValueError as error:
        raise ModelFilesError(path, str(error)) from error
    config = {**_read_json(directory / "special_tokens_map.json"), **_read_json(directory / "tokenizer_config.json")}
    special_tokens = _named_tokens(config)
    return ModelFiles(encoder, _load_templates(directory, template_file, config, special_tokens), special_tokens)


def _load_templates(
    directory: Path, template_file: Path | None, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> ChatTemplates | None:
    default_file = template_file or directory / "chat_template.jinja"
    if template_file is not None or default_file.is_file():
        default = _compile(default_file, _read_text(default_file), special_tokens)
        tool_file = directory / "additional_chat_templates" / "tool_use.jinja"
        if template_file is not None or not tool_file.is_file():
            return ChatTemplates(default)
        return ChatTemplates(default, _compile(tool_file, _read_text(tool_file), special_tokens))
    named = _templates_in_config(config.get("chat_template"))
    place = directory / "tokenizer_config.json"
    compiled = {name: _compile(place, text, special_tokens) for name, text in named.items()}
    return ChatTemplates(compiled["default"], compiled.get("tool_use")) if "default" in compiled else None


def _compile(path: Path, text: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    try:
        return ChatTemplate(text, special_tokens)
    except TemplateError as error:
        raise ModelFilesError(path, f"not a chat template: {error}") from error


def _templates_in_config(value: Any) -> dict[str, str]:
    """The template of tokenizer_config.json, or the several that it names."""
    if isinstance(value, str):
        return {"default": value}
    items = value if isinstance(value, list) else []
    named = {item.get("name"): item.get("template") for item in items if isinstance(item, dict)}
    return {name: text for name, text in named.items() if name in ("default", "tool_use") and isinstance(text, str)}


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise ModelFilesError(path, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(path, "expected a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFilesError(path, f"cannot be read: {error}") from error
