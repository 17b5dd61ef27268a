"""A server of one echoing method on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest

from epp.extproc.exchange import ProtocolError
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.server import Http2Transport
from epp.extproc.transport.stream import Stream

METHOD = "/test.Echo/Echo"


@dataclass
class Echo:
    """Answers each message with itself; some words make it behave otherwise."""

    begun: int = 0
    ended: list[str] = field(default_factory=list)

    async def serve(self, stream: Stream) -> None:
        self.begun += 1
        try:
            await self._serve(stream)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        self.ended.append("fine")

    async def _serve(self, stream: Stream) -> None:
        while (message := await stream.read()) is not None:
            if message == b"bad":
                raise ProtocolError("no ext_proc: 100 % wrong\n")
            if message == b"fault":
                raise RuntimeError
            if message == b"end":
                return
            if message == b"hang":
                await asyncio.sleep(3600)
            if message.startswith(b"flood"):
                for _ in range(int(message[5:])):
                    await stream.write(bytes(10_000))
            await stream.write(message)


Serving = Callable[..., Awaitable[tuple[Http2Transport, int]]]


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def serving(echo: Echo) -> AsyncIterator[Serving]:
    """Starts a server with some limits; it stops with the test."""
    async with AsyncExitStack() as stack:

        async def start(limits: Limits | None = None) -> tuple[Http2Transport, int]:
            transport = Http2Transport({METHOD: echo.serve}, host="127.0.0.1", port=0, limits=limits)
            port = await transport.start()
            stack.push_async_callback(transport.stop)
            return transport, port

        yield start


@asynccontextmanager
async def calling(port: int, *options: tuple[str, int | str]) -> AsyncIterator[grpc.aio.Channel]:
    """A C-core client's channel."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield channel
