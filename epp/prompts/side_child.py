"""The process that reads large bodies and renders large or foreign conversations.

It takes jobs on standard input and answers each on standard output, a frame of msgpack and a frame of plain bytes
both ways. It kills itself when one job takes too long, so nothing that a client sends keeps it busy for longer, even
when its parent is gone.
"""

import gc
import resource
import signal
import struct
import sys
from array import array
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec
from jinja2 import TemplateError

from epp.prompts.apis import NotUnderstoodError, understand
from epp.prompts.approximate import approximate_tokens
from epp.prompts.asked import AnyPrompt, ChatPrompt, TextPrompt, TokensPrompt
from epp.prompts.chat_template import ChatTemplate, RenderError
from epp.prompts.conversation import UnknownPartError, conversation
from epp.prompts.prompt import Api, Media
from epp.prompts.rendered import read_rendered

LENGTH = struct.Struct("<I")
MEMORY_BYTES = 2 * 1024**3
MOST_TEXT_BYTES = 4 * 1024 * 1024
"""Text that is sent back: about a million tokens, more than the index looks at."""

MOST_CONVERSATION_BYTES = 2 * 1024 * 1024
MOST_CONVERSATION_VALUES = 16 * 1024
"""Of a conversation that is sent back: half a million tokens; to decode it again takes two milliseconds."""


class Understand(msgspec.Struct, tag=True):
    """The bytes are a body: what it asks for; its prompt stays here for a job that follows."""

    path: str
    content_type: str
    seconds: float


class Text(msgspec.Struct, tag=True):
    """The text or token ids of the prompt that stayed here."""

    seconds: float


class Render(msgspec.Struct, tag=True):
    """Render a conversation: `prompt`, or the one that stayed here."""

    template: str
    special_tokens: dict[str, str]
    media_mark: str
    seconds: float
    prompt: ChatPrompt | None = None


class Conversation(msgspec.Struct, tag=True):
    """The conversation that stayed here as msgpack, for a model whose prompts are built by code; within bounds."""

    seconds: float


class ReadRendered(msgspec.Struct, tag=True):
    """The bytes are the answer of a render service: its token ids."""

    seconds: float


class StandIns(msgspec.Struct, tag=True):
    """Stand-ins for the token ids of the prompt that stayed here."""

    seconds: float


Job = Understand | Text | Render | Conversation | StandIns | ReadRendered


class Answer(msgspec.Struct):
    """What became of a job; the bytes that follow are its result: text, or token ids of 32 bits."""

    refused: str = ""
    """Why there is no result, one of a fixed few words."""
    problem: str = ""
    """What is wrong with the body and where."""
    api: Api = Api.UNKNOWN
    asked: dict[str, Any] = {}
    """All of the body's Asked but its prompt."""
    prompt: str = ""
    """What kind of prompt stayed here: ChatPrompt, TextPrompt, TokensPrompt, or none."""
    add_special_tokens: bool = False
    has_tools: bool = False
    template: str | None = None
    """The template that the request brought."""
    left_out: int = 0
    """Characters of the text that are not sent back."""
    media: tuple[Media, ...] = ()


def render(template: ChatTemplate, prompt: ChatPrompt, media_mark: str) -> str:
    """The prompt's text, with `media_mark` for media. Raises RenderError, UnknownPartError, RecursionError."""
    return template.render(
        conversation(prompt.messages, parts=template.reads_parts, media_mark=media_mark),
        tools=prompt.tools,
        documents=prompt.documents,
        variables=prompt.variables,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
    )


class Child:
    """Does jobs; keeps the prompt of the last body."""

    def __init__(self) -> None:
        self._prompt: AnyPrompt | None = None

    def do(self, job: Job, data: bytes) -> tuple[Answer, bytes]:
        """The answer to a job, and its result."""
        try:
            match job:
                case Understand():
                    return self._understand(job, data), b""
                case Text():
                    return self._text()
                case Render():
                    return self._render(job)
                case Conversation():
                    return self._conversation()
                case ReadRendered():
                    return _read_rendered(data)
                case StandIns():
                    return Answer(), approximate_tokens(self._prompt).tobytes()
        except UnicodeEncodeError:
            return Answer(refused="not_unicode"), b""
        except MemoryError:
            self._prompt = None
            return Answer(refused="too_large"), b""

    def _understand(self, job: Understand, body: bytes) -> Answer:
        self._prompt = None
        try:
            understood = understand(job.path, job.content_type, body)
        except NotUnderstoodError as reason:
            return Answer(refused=str(reason), problem=reason.problem)
        asked = understood.asked
        prompt = self._prompt = asked.prompt
        fields = {name: getattr(asked, name) for name in asked.__struct_fields__ if name != "prompt"}
        answer = Answer(api=understood.api, asked=fields, prompt=type(prompt).__name__ if prompt is not None else "")
        if isinstance(prompt, ChatPrompt | TextPrompt):
            answer.add_special_tokens = prompt.add_special_tokens
        if isinstance(prompt, ChatPrompt):
            answer.has_tools, answer.template = prompt.tools is not None, prompt.template
        return answer

    def _text(self) -> tuple[Answer, bytes]:
        if isinstance(self._prompt, TextPrompt):
            return _bounded(self._prompt.text)
        try:
            return Answer(), array("I", self._prompt.ids if isinstance(self._prompt, TokensPrompt) else ()).tobytes()
        except (OverflowError, TypeError):
            return Answer(refused="bad_token_ids"), b""

    def _conversation(self) -> tuple[Answer, bytes]:
        if not isinstance(self._prompt, ChatPrompt):
            return Answer(refused="not_text"), b""
        packed = msgspec.msgpack.encode(self._prompt)
        if len(packed) > MOST_CONVERSATION_BYTES or not _holds_at_most(MOST_CONVERSATION_VALUES, self._prompt):
            return Answer(refused="too_large"), b""
        return Answer(), packed

    def _render(self, job: Render) -> tuple[Answer, bytes]:
        prompt = self._prompt if job.prompt is None else job.prompt
        if not isinstance(prompt, ChatPrompt):
            return Answer(refused="not_text"), b""
        try:
            template = _template(job.template, tuple(sorted(job.special_tokens.items())))
            return _bounded(render(template, prompt, job.media_mark))
        except UnknownPartError:
            return Answer(refused="not_text"), b""
        except (RenderError, TemplateError, RecursionError):
            return Answer(refused="template_refused"), b""


def _holds_at_most(values: int, prompt: ChatPrompt) -> bool:
    """Whether a conversation has no more values than that."""
    waiting: list[Any] = [msgspec.to_builtins(prompt)]
    while waiting:
        value = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
        values -= len(inner)
        if values < 0:
            return False
        waiting += inner
    return True


def _read_rendered(answer: bytes) -> tuple[Answer, bytes]:
    try:
        rendered = read_rendered(answer)
    except (ValueError, msgspec.MsgspecError):
        return Answer(refused="bad_answer"), b""
    return Answer(media=rendered.media), rendered.tokens.tobytes()


def _bounded(text: str) -> tuple[Answer, bytes]:
    """The beginning of a text as UTF-8. Raises UnicodeEncodeError."""
    data = text[:MOST_TEXT_BYTES].encode()[:MOST_TEXT_BYTES]
    if len(data) == MOST_TEXT_BYTES:
        kept = data.decode(errors="ignore")
        return Answer(left_out=len(text) - len(kept)), kept.encode()
    return Answer(), data


@lru_cache(maxsize=16)
def _template(text: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(text, dict(special_tokens))


def main() -> None:
    """Answer jobs until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # A million new objects make the collector look at all of them again and again; here it waits for the answer.
    gc.freeze()
    gc.disable()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    decoder, encoder = msgspec.msgpack.Decoder(Job), msgspec.msgpack.Encoder()
    child = Child()
    _write(target, b"")
    while (frame := _read(source)) is not None and (data := _read(source)) is not None:
        job = decoder.decode(frame)
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        answer, result = child.do(job, data)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(target, encoder.encode(answer))
        _write(target, result)
        gc.collect()


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _write(target: BinaryIO, frame: bytes) -> None:
    target.write(LENGTH.pack(len(frame)))
    target.write(frame)
    target.flush()


if __name__ == "__main__":
    main()
