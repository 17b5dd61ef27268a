"""The client: agents that talk to the gateway, time each first token and check every answer."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from epp.simulate.demo.workload import Conversation, Shape
from epp.simulate.engine.answers import is_answer
from epp.simulate.envoy import RUN_HEADER, WORKER_HEADER, Envoy

_REQUEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One request as its client saw it."""

    conversation: int
    turn: int
    error: str = ""
    """What was wrong with the answer; empty: nothing."""
    worker: str = ""
    """`ip:port` of the worker that answered."""
    seconds_to_first_token: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None


class WrongAnswerError(Exception):
    """The answer is not the one that the worker gives to this request."""


class Client:
    """Runs a whole load against one gateway; `on_result` hears of each request as it ends."""

    def __init__(self, envoy: Envoy, shape: Shape, on_result: Callable[[Measured], None]) -> None:
        self._envoy = envoy
        self._shape = shape
        self._on_result = on_result
        self._chunk = msgspec.json.Decoder(_Chunk)
        self.lateness: list[float] = []
        """Seconds by which a timer of this process fired late, ten times a second: how busy the machine is."""

    async def run(self, agents: list[list[Conversation]]) -> None:
        """All agents side by side, until each has had all its conversations."""
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        watch = asyncio.create_task(self._watch_lateness(), name="lateness")
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as tasks:
            for number, conversations in enumerate(agents):
                delay = self._shape.pause_seconds * 2 * number / len(agents)
                tasks.create_task(self._agent(session, conversations, delay))
        watch.cancel()

    async def _watch_lateness(self) -> None:
        while True:
            due = time.perf_counter() + 0.1
            await asyncio.sleep(0.1)
            self.lateness.append(time.perf_counter() - due)

    async def _agent(self, session: aiohttp.ClientSession, conversations: list[Conversation], delay: float) -> None:
        await asyncio.sleep(delay)
        for conversation in conversations:
            await self._converse(session, conversation)

    async def _converse(self, session: aiohttp.ClientSession, conversation: Conversation) -> None:
        messages = [{"role": "system", "content": conversation.system}]
        for number, turn in enumerate(conversation.turns):
            await asyncio.sleep(turn.pause_seconds if number else 0.0)
            messages.append({"role": "user", "content": turn.text})
            try:
                text, measured = await self._ask(session, messages, conversation.id, number)
            except (aiohttp.ClientError, TimeoutError, WrongAnswerError, msgspec.MsgspecError) as error:
                text = ""
                reason = f"{type(error).__name__}: {error}"
                measured = Measured(conversation=conversation.id, turn=number, error=reason)
            self._on_result(measured)
            messages.append({"role": "assistant", "content": text})

    async def _ask(
        self, session: aiohttp.ClientSession, messages: list[dict[str, str]], conversation: int, turn: int
    ) -> tuple[str, Measured]:
        raw = json.dumps(
            {
                "model": "demo",
                "messages": messages,
                "max_tokens": self._shape.answer_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        url = f"http://{self._envoy.address}/v1/chat/completions"
        begin = time.perf_counter()
        async with session.post(url, data=raw, headers={"content-type": "application/json"}) as response:
            if response.status != 200 or response.headers.get(RUN_HEADER) != self._envoy.nonce:
                raise WrongAnswerError(f"status {response.status}: {(await response.text())[:200]}")
            first, text, usage = await self._read(response)
        if not is_answer(raw, text) or usage.completion_tokens != self._shape.answer_tokens:
            raise WrongAnswerError(f"not what the worker says to this request: {text[:80]!r}")
        return text, Measured(
            conversation=conversation,
            turn=turn,
            worker=response.headers.get(WORKER_HEADER, ""),
            seconds_to_first_token=first - begin,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[float, str, _Usage]:
        first = 0.0
        pieces: list[str] = []
        usage = None
        done = False
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                continue
            chunk = self._chunk.decode(line[6:])
            for choice in chunk.choices:
                if choice.delta.content:
                    first = first or time.perf_counter()
                    pieces.append(choice.delta.content)
            usage = chunk.usage or usage
        if not done or usage is None:
            raise WrongAnswerError("the stream ended too early")
        return first, "".join(pieces), usage
