"""Where a model's files are: a directory, an installed package, or the Hugging Face cache."""

import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json", "chat_template.jinja"),
    *("additional_chat_templates/*.jinja", "tekken.json", "tokenizer.model*", "*.model.v*"),
)


class ModelSourceError(Exception):
    """A source cannot be found; the text says what was expected."""


def find_model(source: str, *, allow_hub: bool = False) -> Path:
    """The directory of `source`: a path, `package:NAME/DIR`, or `hf:ORG/NAME@REVISION`.

    A model of the hub is looked up in the local cache; only `allow_hub` lets it be downloaded.
    Raises ModelSourceError.
    """
    kind, _, rest = source.partition(":")
    if kind == "package" and rest:
        return _in_package(rest)
    if kind == "hf" and rest:
        repository, _, revision = rest.partition("@")
        return _in_cache(repository, revision) or _download(repository, revision, allow_hub)
    directory = Path(source)
    if not directory.is_dir():
        raise ModelSourceError(f"{source}: expected a directory, package:NAME or hf:ORG/NAME@REVISION")
    return directory


def _in_package(place: str) -> Path:
    name, _, inner = place.partition("/")
    try:
        found: Traversable = files(name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        raise ModelSourceError(f"package {name}: not installed: {error}") from None
    directory = Path(str(found)) / inner
    if not directory.is_dir():
        raise ModelSourceError(f"{directory}: no such directory in package {name}")
    return directory


def _cache() -> Path:
    """The hub's cache directory, by the variables that the hub's own library reads."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def _in_cache(repository: str, revision: str) -> Path | None:
    model = _cache() / f"models--{repository.replace('/', '--')}"
    reference = model / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    snapshot = model / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _download(repository: str, revision: str, allow_hub: bool) -> Path:
    if not allow_hub:
        raise ModelSourceError(f"{repository}: not in {_cache()}; EPP_ALLOW_HUB=true lets it be downloaded")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(TOKENIZER_FILES)))
    except Exception as error:  # the library raises errors of several others
        raise ModelSourceError(f"{repository}: download failed: {error}") from error
