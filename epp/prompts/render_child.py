"""The process that renders large or foreign conversations: frames in on standard input, frames out on standard output.

It kills itself when one rendering takes too long, so nothing that a client sends keeps it busy for longer, even when
its parent is gone.
"""

import resource
import signal
import struct
import sys
from functools import lru_cache
from typing import BinaryIO

import msgspec
from jinja2 import TemplateError

from epp.prompts.asked import ChatPrompt
from epp.prompts.chat_template import ChatTemplate, RenderError
from epp.prompts.conversation import UnknownPartError, conversation

LENGTH = struct.Struct("<I")
MEMORY_BYTES = 2 * 1024**3


class Job(msgspec.Struct):
    """One conversation to render."""

    template: str
    special_tokens: dict[str, str]
    prompt: ChatPrompt
    media_mark: str
    seconds: float


class Rendered(msgspec.Struct):
    """The text, or why there is none: "not_text" or "template_refused"."""

    text: str = ""
    refused: str = ""


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


def main() -> None:
    """Answer jobs until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    decoder, encoder = msgspec.msgpack.Decoder(Job), msgspec.msgpack.Encoder()
    _write(target, b"")
    while (frame := _read(source)) is not None:
        job = decoder.decode(frame)
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        answer = encoder.encode(_answer(job))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(target, answer)


def _answer(job: Job) -> Rendered:
    try:
        template = _template(job.template, tuple(sorted(job.special_tokens.items())))
        return Rendered(text=render(template, job.prompt, job.media_mark))
    except UnknownPartError:
        return Rendered(refused="not_text")
    except (RenderError, TemplateError, RecursionError, MemoryError):
        return Rendered(refused="template_refused")


@lru_cache(maxsize=16)
def _template(text: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(text, dict(special_tokens))


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _write(target: BinaryIO, frame: bytes) -> None:
    target.write(LENGTH.pack(len(frame)) + frame)
    target.flush()


if __name__ == "__main__":
    main()
