"""Rendering in a process that can be killed, for conversations too large, or templates too foreign, for the event loop.

Python cannot interrupt a thread, and a template from outside may loop for ever.
"""

import asyncio
import contextlib
import subprocess
import sys
from typing import BinaryIO

import msgspec

from epp.prompts.asked import ChatPrompt
from epp.prompts.model import WithoutTokensError
from epp.prompts.render_child import LENGTH, Job, Rendered

_MOST_WAITING = 16
_MOST_TEXT_BYTES = 64 * 1024 * 1024

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Rendered)


class RenderProcess:
    """One child at a time, started when it is first needed; a rendering beyond the budget costs the child its life."""

    def __init__(self, budget_seconds: float) -> None:
        self.budget_seconds = budget_seconds
        self.killed = 0
        """Children that took too long."""
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._starting: asyncio.Task[_Child] | None = None

    async def render(
        self, template: str, special_tokens: dict[str, str], prompt: ChatPrompt, media_mark: str = ""
    ) -> str:
        """The prompt's text. Raises WithoutTokensError with what the child says, or "render_late"."""
        if self._waiting >= _MOST_WAITING:
            raise WithoutTokensError("render_late")
        self._waiting += 1
        try:
            job = Job(template, special_tokens, prompt, media_mark, self.budget_seconds * 2)
            async with asyncio.timeout(self.budget_seconds), self._turn:
                rendered = await self._ask(job)
        except (TimeoutError, OSError, EOFError, ValueError, msgspec.MsgspecError, RecursionError):
            raise WithoutTokensError("render_late") from None
        finally:
            self._waiting -= 1
        if rendered.refused:
            raise WithoutTokensError(rendered.refused)
        return rendered.text

    def close(self) -> None:
        """Kill the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
        if self._starting is not None:
            self._starting.cancel()

    async def _ask(self, job: Job) -> Rendered:
        if self._child is None:
            self._starting = self._starting or asyncio.ensure_future(asyncio.to_thread(_Child))
            try:
                self._child = await asyncio.shield(self._starting)
            finally:
                if self._starting.done():
                    self._starting = None
        child = self._child
        try:
            return await asyncio.to_thread(child.ask, job)
        except BaseException:
            self.killed += 1
            self._child = None
            child.kill()
            raise


class _Child:
    """A running child; its methods block, for calls in threads.

    Raises OSError or EOFError when it cannot start.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "epp.prompts.render_child"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - our own
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: BinaryIO = self._process.stdin  # type: ignore[assignment]  # a pipe of bytes
        self._from: BinaryIO = self._process.stdout  # type: ignore[assignment]
        self._read()

    def ask(self, job: Job) -> Rendered:
        """What the child answers."""
        frame = _ENCODER.encode(job)
        self._to.write(LENGTH.pack(len(frame)))
        self._to.write(frame)
        self._to.flush()
        return _DECODER.decode(self._read())

    def kill(self) -> None:
        """End it; a call that waits for it in another thread then fails."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()

    def _read(self) -> bytes:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > _MOST_TEXT_BYTES:
            raise ValueError("rendered text too long")
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        data = self._from.read(size)
        if len(data) != size:
            raise EOFError
        return data
