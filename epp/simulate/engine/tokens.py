"""The engine's own rendering and tokenisation, from the model's tokenizer.json and chat template."""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

Message = dict[str, object]

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class TokensError(Exception):
    """The model's files cannot be used, or a request cannot be rendered; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids of an answer and the piece of text that each adds."""

    ids: list[int]
    pieces: list[str]


class ModelText:
    """One model's tokenizer and template."""

    def __init__(self, folder: Path, chat_template: Path | None = None) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise TokensError(f"{file}: no such file")
        self._tokenizer = Tokenizer.from_file(str(file))
        config = _read_config(folder)
        source = _template_source(folder, chat_template, config)
        self._special = {
            name: _token(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        self._template = _environment().from_string(source) if source else None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def render(self, messages: list[Message], options: dict[str, object]) -> str:
        """The chat as one text; `options` are further template variables.

        Raises TokensError when the model has no template or the template refuses.
        """
        if self._template is None:
            raise TokensError("this model has no chat template")
        values: dict[str, object] = {"add_generation_prompt": True, **self._special, **options}
        try:
            return self._template.render(messages=[_plain(message) for message in messages], **values)
        except TemplateError as error:
            raise TokensError(f"the chat template refuses: {error}") from error

    def answer(self, text: str, limit: int) -> Answer:
        """At most `limit` tokens of `text`, each with the characters that it adds."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ends = [end for _, end in encoding.offsets[:limit]]
        pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return Answer(list(encoding.ids[:limit]), pieces)

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def _plain(message: Message) -> Message:
    """Content parts become one text, as for templates that know only text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part.get("text", "") for part in content if isinstance(part, dict)]
    return {**message, "content": "\n".join(texts)}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().astimezone().strftime(form)
    return environment


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _read_config(folder: Path) -> dict[str, object]:
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) if file.is_file() else {}
    return config if isinstance(config, dict) else {}


def _template_source(folder: Path, named: Path | None, config: dict[str, object]) -> str | None:
    beside = folder / "chat_template.jinja"
    if named is not None or beside.is_file():
        return (named or beside).read_text()
    source = config.get("chat_template")
    return source if isinstance(source, str) else None


def _token(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
