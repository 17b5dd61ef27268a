"""Which code builds the prompts of a model: its chat template, or a library of its own."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from epp.prompts.encoding import EncodingThreads
from epp.prompts.model import Model
from epp.prompts.model_files import ModelFiles, ModelFilesError, UnknownKindError, load_model_files
from epp.prompts.side_process import SideProcess
from epp.prompts.template_model import TemplateModel


class EncoderKind(StrEnum):
    """What builds the prompt."""

    AUTO = "auto"
    TEMPLATE = "template"
    MISTRAL = "mistral"
    HARMONY = "harmony"


@dataclass(frozen=True, slots=True)
class Shared:
    """What all models share."""

    threads: EncodingThreads
    process: SideProcess
    template_in_request: bool = False
    """Whether templates that come with requests are rendered, as with vLLM's `--trust-request-chat-template`."""
    date: str = ""
    """The day that prompts of gpt-oss name; empty: today."""


_BUILT_BY_CODE = frozenset({"deepseek_v32", "deepseek_v4", "kimi_k3", "inkling"})
"""Values of `model_type` in config.json whose prompts vLLM builds by code that no library here has."""


def load_model(directory: Path, template_file: Path | None, kind: EncoderKind, shared: Shared) -> Model:
    """The model in `directory`. Raises ModelFilesError."""
    return _LOADERS[kind](directory, template_file, shared)


def _auto(directory: Path, template_file: Path | None, shared: Shared) -> Model:
    model_type = _model_type(directory)
    if model_type == "gpt_oss" and template_file is None:
        return _harmony(directory, template_file, shared)
    if model_type in _BUILT_BY_CODE and template_file is None:
        problem = f"prompts of {model_type} are built by the engine's own code: use EPP_RENDER_URL, or name a template"
        raise UnknownKindError(directory, problem)
    if (directory / "tokenizer.json").is_file():
        return _template(directory, template_file, shared)
    if any(directory.glob("tekken*.json")) or any(directory.glob("*.model.v*")):
        return _mistral(directory, template_file, shared)
    raise UnknownKindError(directory, "expected a directory with tokenizer.json, or with Mistral's tekken.json")


def _template(directory: Path, template_file: Path | None, shared: Shared) -> Model:
    return _template_model(load_model_files(directory, template_file), shared)


def _template_model(files: ModelFiles, shared: Shared) -> TemplateModel:
    return TemplateModel(
        files,
        shared.threads,
        shared.process,
        template_in_request=shared.template_in_request,
    )


def _harmony(directory: Path, _template_file: Path | None, shared: Shared) -> Model:
    if importlib.util.find_spec("openai_harmony") is None:
        problem = "prompts of gpt-oss need the package openai-harmony: install epp[gpt-oss], or use EPP_RENDER_URL"
        raise UnknownKindError(directory, problem)
    from epp.prompts.harmony import HarmonyModel

    files = load_model_files(directory)
    texts = _template_model(files, shared)
    return HarmonyModel(directory, texts, files.encoder, shared.threads, shared.date)


def _mistral(directory: Path, _template_file: Path | None, shared: Shared) -> Model:
    if importlib.util.find_spec("mistral_common") is None:
        problem = "a Mistral tokenizer needs the package mistral-common: install epp[mistral]"
        raise UnknownKindError(directory, problem)
    from epp.prompts.mistral import MistralModel, find_mistral_file

    file = find_mistral_file(directory)
    if file is None:
        raise ModelFilesError(directory, "expected tekken.json or a tokenizer.model of Mistral")
    return MistralModel(file, shared.threads)


_LOADERS: dict[EncoderKind, Callable[[Path, Path | None, Shared], Model]] = {
    EncoderKind.AUTO: _auto,
    EncoderKind.TEMPLATE: _template,
    EncoderKind.MISTRAL: _mistral,
    EncoderKind.HARMONY: _harmony,
}


def _model_type(directory: Path) -> str:
    try:
        config: Any = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("model_type", "")) if isinstance(config, dict) else ""
