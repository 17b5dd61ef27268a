"""A process beside this one, for what would hold the event loop: large bodies, large conversations, foreign templates.

Decoding JSON and rendering hold Python's lock, so a thread would stop the loop too; and Python cannot interrupt a
thread, while a template from outside may loop for ever.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import msgspec

from epp.prompts.asked import Body, ChatPrompt
from epp.prompts.model import WithoutTokensError
from epp.prompts.side_child import LENGTH, Answer, Job, Render

_MOST_WAITING = 256
_MOST_RESULT_BYTES = 256 * 1024 * 1024
_PIPE_BYTES = 1024 * 1024
_DECODED_BYTES = 128 * 1024

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Answer)


class SideProcess:
    """One child at a time, started when it is first needed at the latest; a job beyond the budget costs it its life.

    Who waits no longer leaves the job that it began to its end: a burst of requests must not kill child after child.
    """

    def __init__(self, budget_seconds: float) -> None:
        self.budget_seconds = budget_seconds
        self.killed = 0
        """Children that took too long."""
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._alive: set[_Child] = set()
        self._closed = False
        self._starting: asyncio.Task[_Child] | None = None
        self._left: asyncio.Task[tuple[Answer, bytes]] | None = None
        """A job that nobody waits for any more."""
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The child to oneself, for several calls of `ask`, all within the budget.

        Raises WithoutTokensError("render_late") when that is not enough, or when too many wait.
        """
        if self._waiting >= _MOST_WAITING:
            raise WithoutTokensError("render_late")
        self._waiting += 1
        try:
            async with asyncio.timeout(self.budget_seconds), self._turn:
                if self._left is not None:
                    await asyncio.wait({self._left})
                    self._left = None
                yield
        except (TimeoutError, OSError, EOFError, ValueError, msgspec.MsgspecError, RecursionError):
            raise WithoutTokensError("render_late") from None
        finally:
            self._waiting -= 1

    async def ask(self, job: Job) -> tuple[Answer, bytes]:
        """The child's answer and result, within a turn. Raises WithoutTokensError with the reason for none."""
        answer, result = await self.answer(job)
        if answer.refused:
            raise WithoutTokensError(answer.refused)
        return answer, result

    async def render(
        self, template: str, special_tokens: dict[str, str], prompt: ChatPrompt, media_mark: str = ""
    ) -> str:
        """The prompt's text. Raises WithoutTokensError."""
        async with self.turn():
            _, text = await self.text(Render(template, special_tokens, media_mark, self.child_seconds, prompt))
        return text

    async def text(self, job: Job) -> tuple[Answer, str]:
        """As `ask`, for a result that is text."""
        answer, data = await self.ask(job)
        return answer, await asyncio.to_thread(_decoded, data)

    @property
    def child_seconds(self) -> float:
        """After this long for one job the child ends by itself."""
        return self.budget_seconds * 2

    def start(self) -> "asyncio.Task[_Child]":
        """Start a child now, as that takes longer than a job may."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(asyncio.to_thread(self._started))
            self._starting.add_done_callback(_heard)
        return self._starting

    def close(self) -> None:
        """Kill the child."""
        self._closed, self._child = True, None
        if self._starting is not None:
            self._starting.cancel()
        for child in tuple(self._alive):
            child.kill()
            child.bury()

    async def answer(self, job: Job, data: Body = b"") -> tuple[Answer, bytes]:
        """The child's answer and result, within a turn."""
        if self._child is None:
            starting = self.start()
            try:
                self._child = await asyncio.shield(starting)
            finally:
                if starting.done():
                    self._starting = None
        child = self._child
        task = asyncio.ensure_future(asyncio.to_thread(child.ask, job, data))
        end = asyncio.get_running_loop().call_later(self.budget_seconds, self._kill, child)
        task.add_done_callback(lambda _: end.cancel())
        task.add_done_callback(_heard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._left = task
            raise
        except BaseException:
            self._kill(child)
            raise

    def _started(self) -> "_Child":
        """A child, in a thread; none outlives `close`, whichever comes first."""
        child = _Child()
        self._alive.add(child)
        if self._closed:
            child.kill()
            child.bury()
        return child

    def _kill(self, child: "_Child") -> None:
        if self._child is not child:
            return
        self.killed += 1
        self._child = None
        child.kill()
        self._alive.discard(child)
        task = asyncio.ensure_future(asyncio.to_thread(child.bury))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self.start()


def _heard(task: "asyncio.Task[Any]") -> None:
    """What went wrong is told to those who wait; nobody waiting is no fault."""
    if not task.cancelled():
        task.exception()


def _decoded(data: bytes) -> str:
    """The text of UTF-8, a slice at a time: all at once would hold Python's lock for two milliseconds per megabyte."""
    decoder = getincrementaldecoder("utf-8")()
    slices = (data[at : at + _DECODED_BYTES] for at in range(0, len(data), _DECODED_BYTES))
    return "".join([*map(decoder.decode, slices), decoder.decode(b"", final=True)])


class _Child:
    """A running child; its methods block, for calls in threads.

    Raises OSError or EOFError when it cannot start.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "epp.prompts.side_child"]
        one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # its buffers would count against the child's memory
        self._process = subprocess.Popen(  # noqa: S603 - our own
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=_PIPE_BYTES, env=one_thread
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: BinaryIO = self._process.stdin  # type: ignore[assignment]  # a pipe of bytes
        self._from: BinaryIO = self._process.stdout  # type: ignore[assignment]
        self._read()

    def ask(self, job: Job, data: Body) -> tuple[Answer, bytes]:
        """What the child answers."""
        self._write(_ENCODER.encode(job))
        self._write(data)
        return _DECODER.decode(self._read()), self._read()

    def kill(self) -> None:
        """End it; a call that waits for it in another thread then fails."""
        self._process.kill()

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def bury(self) -> None:
        """Wait until it is gone, and free what it held: the memory of a large body takes its time."""
        self._process.wait()
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()

    def _write(self, frame: Body) -> None:
        self._to.write(LENGTH.pack(len(frame)))
        self._to.write(frame)
        self._to.flush()

    def _read(self) -> bytes:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > _MOST_RESULT_BYTES:
            raise ValueError("answer too long")
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        data = self._from.read(size)
        if len(data) != size:
            raise EOFError
        return data
