"""The models that the settings describe."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from epp.prompts.encoders import EncoderKind, Shared, load_model
from epp.prompts.model import Model
from epp.prompts.model_files import ModelFilesError, UnknownKindError
from epp.prompts.model_source import TOKENIZER_FILES, ModelSourceError, find_model
from epp.prompts.models import Models, ServedModel
from epp.prompts.worker_files import DownloadLimits, WorkerFiles
from epp.settings import Settings, SettingsError

_log = structlog.get_logger(__name__)


class _Entry(BaseModel):
    """One model of EPP_MODELS_FILE."""

    model_config = ConfigDict(extra="forbid")

    names: list[str]
    tokenizer: str
    chat_template: Path | None = None
    encoder: EncoderKind = EncoderKind.AUTO
    adapters: list[str] = []


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    models: list[_Entry]


def models_from_settings(settings: Settings, shared: Shared) -> Models:
    """All models. Raises SettingsError that names the variable."""
    adapters = [name.strip() for name in settings.adapters.split(",") if name.strip()]
    check = settings.tokenizer_check_seconds
    if settings.models_file is not None:
        entries = _entries(settings.models_file)
        served = [_served(entry, f"EPP_MODELS_FILE: {settings.models_file}", settings, shared) for entry in entries]
        return Models(served, [*adapters, *(name for e in entries for name in e.adapters)], check_seconds=check)
    source, variable = _only_source(settings)
    if source is None:
        if settings.chat_template is not None:
            raise SettingsError("EPP_CHAT_TEMPLATE: expected only together with EPP_TOKENIZER_PATH or EPP_TOKENIZER")
        if settings.render_url is None:
            _log.warning("no tokenizer: prefixes are compared as text", setting="EPP_TOKENIZER_PATH")
        else:
            _log.info("no tokenizer: engines render and tokenise", setting="EPP_RENDER_URL")
        return Models((), adapters)
    entry = _Entry(names=[], tokenizer=source, chat_template=settings.chat_template)
    return Models([_served(entry, variable, settings, shared)], adapters, check_seconds=check)


def _only_source(settings: Settings) -> tuple[str | None, str]:
    if settings.tokenizer_path is not None and settings.tokenizer is not None:
        raise SettingsError("EPP_TOKENIZER: expected not together with EPP_TOKENIZER_PATH")
    if settings.tokenizer_path is not None:
        return str(settings.tokenizer_path), "EPP_TOKENIZER_PATH"
    return settings.tokenizer, "EPP_TOKENIZER"


def _served(entry: _Entry, variable: str, settings: Settings, shared: Shared) -> ServedModel:
    """Raises SettingsError for a model that cannot be loaded, unless a worker may still bring it or render for it."""
    from_worker = entry.tokenizer.startswith(("http://", "https://"))
    try:
        one = (_of_worker if from_worker else _of_directory)(entry, settings, shared)
        one.look()
    except (ModelSourceError, ModelFilesError) as error:
        rendered = settings.render_url is not None and isinstance(error, UnknownKindError)
        if not from_worker and not rendered:
            of_template = isinstance(error, ModelFilesError) and error.path == settings.chat_template
            raise SettingsError(f"{'EPP_CHAT_TEMPLATE' if of_template else variable}: {error}") from None
        one.problem = str(error)
        instead = "prefixes are compared as text" if settings.render_url is None else "EPP_RENDER_URL is asked"
        _log.warning("no tokenizer yet" if from_worker else "no tokenizer", problem=one.problem, meanwhile=instead)
    if one.model is not None and not one.model.has_template:
        _log.warning("no chat template: chat prefixes are compared as text", model=entry.names, origin=one.origin)
    return one


def _of_directory(entry: _Entry, settings: Settings, shared: Shared) -> ServedModel:
    """Raises ModelSourceError."""
    directory = find_model(entry.tokenizer, allow_hub=settings.allow_hub)
    return ServedModel(
        names=frozenset(entry.names),
        origin=str(directory),
        stamp=lambda: _stamp(_files(directory, entry.chat_template)),
        load=partial(load_model, directory, entry.chat_template, entry.encoder, shared),
    )


def _of_worker(entry: _Entry, settings: Settings, shared: Shared) -> ServedModel:
    limits = DownloadLimits(settings.tokenizer_download_bytes, settings.tokenizer_download_seconds)
    files = WorkerFiles(entry.tokenizer, limits)
    template = [] if entry.chat_template is None else [entry.chat_template]

    def load() -> Model:
        with files.directory() as directory:
            try:
                return load_model(directory, entry.chat_template, entry.encoder, shared)
            except ModelFilesError as error:
                raise ModelSourceError(str(error).replace(str(directory), files.url)) from None

    return ServedModel(
        names=frozenset(entry.names),
        origin=files.url,
        stamp=lambda: (files.stamp(), _stamp(template)),
        load=load,
    )


def _files(directory: Path, template: Path | None) -> list[Path]:
    found = [path for pattern in TOKENIZER_FILES for path in sorted(directory.glob(pattern))]
    return found if template is None else [*found, template]


def _entries(path: Path) -> list[_Entry]:
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = _File.model_validate(content).models
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"EPP_MODELS_FILE: {path}: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        raise SettingsError(f"EPP_MODELS_FILE: {path}: {_place(problem)}: {problem['msg']}") from None
    names = [name for entry in entries for name in entry.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"EPP_MODELS_FILE: {path}: two models have the name {twice!r}")
    return entries


def _place(problem: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"])


def _stamp(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    stamps = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        stamps.append((str(path), found.st_mtime_ns, found.st_size))
    return tuple(stamps)
