"""What a request's body asks of the worker."""

from dataclasses import dataclass

import msgspec

from epp.simulate.engine.cache import Namespace
from epp.simulate.engine.tokens import Message, ModelText, TokensError

DEFAULT_ANSWER_TOKENS = 64
_TEMPLATE_FIELDS = ("tools", "documents", "add_generation_prompt", "continue_final_message")


class RequestError(Exception):
    """The client's mistake; answered with `status` and the text."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Body(msgspec.Struct):
    """The fields that the worker understands; others are ignored."""

    model: str = ""
    messages: list[Message] | None = None
    prompt: str | list[int | str | list[int]] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None
    tools: list[Message] | None = None
    documents: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


@dataclass(frozen=True, slots=True)
class Asked:
    """One understood request."""

    body: Body
    tokens: list[int]
    namespace: Namespace
    answer_tokens: int


def decode_body(raw: bytes) -> Body:
    """The request's body.

    Raises RequestError when it is not JSON of the right shape.
    """
    try:
        return msgspec.json.decode(raw, type=Body)
    except msgspec.MsgspecError as error:
        raise RequestError(str(error)) from None


def understand(raw: bytes, text: ModelText, *, chat: bool, model: str, loras: tuple[str, ...], room: int) -> Asked:
    """Tokens and namespace of a request; `room` is the longest sequence that fits.

    Raises RequestError for what a real worker refuses.
    """
    body = decode_body(raw)
    if body.model not in {"", model, *loras}:
        raise RequestError(f"The model `{body.model}` does not exist.", 404)
    tokens = prompt_tokens(body, text, chat=chat)
    if not tokens:
        raise RequestError("the prompt is empty")
    wanted = body.max_completion_tokens or body.max_tokens or DEFAULT_ANSWER_TOKENS
    if len(tokens) + 1 > room:
        raise RequestError(f"the prompt has {len(tokens)} tokens; {room - 1} fit")
    lora = body.model if body.model in loras else None
    return Asked(body, tokens, Namespace(lora, body.cache_salt), min(max(wanted, 1), room - len(tokens)))


def prompt_tokens(body: Body, text: ModelText, *, chat: bool) -> list[int]:
    """Token ids of the prompt."""
    if chat:
        if body.messages is None:
            raise RequestError("messages: field required")
        options = {name: value for name in _TEMPLATE_FIELDS if (value := getattr(body, name)) is not None}
        try:
            rendered = text.render(body.messages, {**options, **(body.chat_template_kwargs or {})})
        except TokensError as error:
            raise RequestError(str(error)) from None
        return text.encode(rendered, add_special_tokens=bool(body.add_special_tokens))
    prompt = _only_prompt(body.prompt)
    if isinstance(prompt, str):
        return text.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
    return prompt


def _only_prompt(prompt: str | list[int | str | list[int]] | None) -> str | list[int]:
    if prompt is None:
        raise RequestError("prompt: field required")
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) == len(prompt):
        return ids
    if len(prompt) > 1 or isinstance(prompt[0], int):
        raise RequestError("several prompts in one request are not simulated")
    return prompt[0]
