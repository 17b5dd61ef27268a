"""A chat template in the Jinja environment that transformers gives it.

The environment is that of transformers 5.24 `apply_chat_template`: immutable sandbox, trimmed blocks, loop controls,
a `generation` tag, `tojson` without ASCII escapes, `raise_exception`, `strftime_now`.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from epp.prompts.content_format import reads_parts
from epp.prompts.conversation import TemplateMessage

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class RenderError(ValueError):
    """The template refused the messages, or they do not fit it."""


class ChatTemplate:
    """One compiled template.

    Raises jinja2.TemplateError when `text` is no template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        syntax = environment.parse(text)
        self.text = text
        self.reads_parts = reads_parts(syntax)
        """Whether the template loops over a message's content; else content is given as one string."""
        self.variables = frozenset(meta.find_undeclared_variables(syntax))
        self._special_tokens = dict(special_tokens)
        self._template = environment.from_string(text)

    def render(
        self,
        messages: list[TemplateMessage],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt text. Raises RenderError; a template from outside may also run for ever."""
        messages = [_with_reasoning(message) for message in messages]
        final = ""
        if continue_final_message:
            if add_generation_prompt:
                raise RenderError("continue_final_message and add_generation_prompt exclude each other")
            if "content" not in self.text:
                raise RenderError("continue_final_message with a template that does not read content")
            final = _mark_final(messages)
        given = {
            **self._special_tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(given)
        except Exception as error:
            raise RenderError(f"{type(error).__name__}: {error}") from error
        return _cut_at_mark(text, final) if continue_final_message else text


def _with_reasoning(message: TemplateMessage) -> TemplateMessage:
    """The message with its reasoning under the names that templates read, and without nulls."""
    reasoning = next((message[name] for name in _REASONING_NAMES if message.get(name) is not None), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return {key: value for key, value in message.items() if value is not None}


def _mark_final(messages: list[TemplateMessage]) -> str:
    """Put the mark behind the last message's text, and return that text."""
    content = messages[-1]["content"] if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _CONTINUE_TAG
        return content
    for part in reversed(content or []):
        if "text" in part:
            text = str(part["text"])
            part["text"] = text + _CONTINUE_TAG
            return text
    raise RenderError("continue_final_message without text to continue")


def _cut_at_mark(text: str, final: str) -> str:
    mark = _CONTINUE_TAG.strip()
    if final.strip() not in text or mark not in text:
        raise RenderError("the final message does not appear in the rendered prompt")
    place = text.rindex(mark)
    kept = text[:place]
    return kept if text.startswith(_CONTINUE_TAG, place) else kept.rstrip()


class _Generation(Extension):
    """`{% generation %}`, which only marks text in training."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_call"), [], [], body).set_lineno(line)

    def _call(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` for templates, without the class's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` for templates, without underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may pass self=
        self, positional = args[0], args[1:]
        attributes = dict(*positional, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"underscore attribute {name!r} on a namespace")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment
