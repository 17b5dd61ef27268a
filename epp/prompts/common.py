"""What the bodies of several APIs have in common."""

from typing import Any

import msgspec

from epp.prompts.asked import AnyPrompt, Asked, TextPrompt, TokensPrompt

CHARACTERS_PER_TOKEN = 4
"""Where tokens are only estimated."""


class AgentHints(msgspec.Struct):
    """Dynamo's `nvext.agent_hints`."""

    osl: int | None = None
    priority: int | None = None


class SessionControl(msgspec.Struct):
    """Dynamo's `nvext.session_control`."""

    session_id: str | None = None


class Extension(msgspec.Struct):
    """Dynamo's `nvext`."""

    agent_hints: AgentHints | None = None
    session_control: SessionControl | None = None
    cache_salt: str | None = None
    token_data: list[int] | None = None


_NO_EXTENSION, _NO_HINTS, _NO_SESSION = Extension(), AgentHints(), SessionControl()


class CommonBody(msgspec.Struct, kw_only=True):
    """Fields that OpenAI-style bodies share; all others are skipped without being decoded."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    nvext: Extension | None = None


def asked(
    body: CommonBody, prompt: AnyPrompt | None, max_output_tokens: int | None = None, *, further_tokens: int = 0
) -> Asked:
    """`body` with its prompt; Dynamo's hints win over the plain fields, as in its own frontend."""
    extension = body.nvext or _NO_EXTENSION
    hints = extension.agent_hints or _NO_HINTS
    control = extension.session_control or _NO_SESSION
    if extension.token_data:
        prompt = TokensPrompt(ids=extension.token_data)
    return Asked(
        model=body.model or "",
        prompt=prompt,
        further_tokens=further_tokens,
        stream=bool(body.stream),
        max_output_tokens=max_output_tokens,
        expected_output_tokens=hints.osl,
        cache_salt=extension.cache_salt or body.cache_salt or "",
        session=body.session_id or control.session_id or body.prompt_cache_key or "",
        priority=-hints.priority if hints.priority is not None else body.priority or 0,
    )


def text_or_tokens(
    value: str | list[str | int | list[int]] | None, add_special_tokens: bool
) -> tuple[AnyPrompt | None, int]:
    """The first prompt in OpenAI's `prompt` or `input` (a string, token ids, or a batch of either), and about how many
    tokens the others have.

    Raises msgspec.ValidationError for a list that mixes both.
    """
    if isinstance(value, str):
        return TextPrompt(text=value, add_special_tokens=add_special_tokens), 0
    if not value:
        return None, 0
    kinds = set(map(type, value))
    if kinds == {int}:
        return TokensPrompt(ids=value), 0  # type: ignore[arg-type]  # all are int
    first = value[0]
    if kinds == {str}:
        others = sum(map(len, value)) - len(first)  # type: ignore[arg-type]
        return TextPrompt(text=first, add_special_tokens=add_special_tokens), others // CHARACTERS_PER_TOKEN  # type: ignore[arg-type]
    if kinds == {list}:
        return TokensPrompt(ids=first), sum(map(len, value)) - len(first)  # type: ignore[arg-type]
    raise msgspec.ValidationError("Expected strings, or integers, or arrays of integers, not a mixture")


def template_tool(
    *, name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None = None
) -> dict[str, Any]:
    """A function tool with the keys, order and nulls that vLLM's own model gives it before it meets a template."""
    function: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}
