"""What a check works with: the target, and ways to play requests to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from epp.conformance import picked
from epp.conformance.exchange import Exchange, Half
from epp.conformance.messages import HttpRequest, Modes, Shape
from epp.conformance.stream import PROCESS, Call, Limits, Stream
from epp.conformance.target import Connection
from epp.conformance.verdict import SkippedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the user says about the target."""

    endpoints: tuple[str, ...] = ()
    """All endpoints of its pool as `ip:port`; empty: unknown."""
    model: str = "conformance"
    """A model that the pool serves."""
    empty: bool = False
    """Whether its pool has no ready endpoint."""
    hooks: bool = False
    """Whether it has the test hooks of the Gateway conformance suite switched on."""


@dataclass(slots=True, kw_only=True)
class Lab:
    """One target, connected."""

    connection: Connection
    health: grpc.aio.Channel
    """Where its health service is: a channel of its own, or the same."""
    health_is_apart: bool
    described: Described
    limits: Limits
    seen: set[str] = field(default_factory=set)
    """Endpoints that the target named so far."""

    def endpoints(self) -> list[str]:
        """Endpoints of the pool: those described, else those seen."""
        known = list(self.described.endpoints) or sorted(self.seen)
        if not known:
            raise SkippedError("no endpoint is known: give --endpoint ip:port for each")
        return known

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Stream]:
        """A stream of its own; left behind as by a gateway whose client has left."""
        call: Call = self.connection.channel.stream_stream(PROCESS)()
        stream = Stream(call, self.limits)
        try:
            yield stream
        finally:
            await stream.close()

    @asynccontextmanager
    async def exchange(self, *, modes: Modes | None = None, shape: Shape = Shape.ENVOY) -> AsyncIterator[Exchange]:
        """An exchange to be played in these modes; default: full duplex both ways, as gateways do."""
        async with self.stream() as stream:
            yield Exchange(stream, modes=modes or Modes(), shape=shape)

    async def ask(
        self,
        request: HttpRequest,
        *,
        modes: Modes | None = None,
        shape: Shape = Shape.ENVOY,
        subset: list[str] | None = None,
    ) -> Half:
        """Play the request half only, then leave."""
        async with self.exchange(modes=modes, shape=shape) as exchange:
            return await exchange.request(request, subset=subset)

    async def routed(
        self,
        request: HttpRequest,
        *,
        modes: Modes | None = None,
        shape: Shape = Shape.ENVOY,
        subset: list[str] | None = None,
    ) -> Half:
        """Like `ask`. Raises FailedError when the request is not routed to an endpoint."""
        half = await self.ask(request, modes=modes, shape=shape, subset=subset)
        picked.routed(half)
        return half

    async def passed_on(self, request: HttpRequest) -> Half:
        """Like `ask`. Raises FailedError when the proxy could not send the request on, to wherever."""
        return picked.completed(await self.ask(request))

    def chat(self, size: int = 0, *, messages: int = 1, empty_end: bool = False, trailers: bool = False) -> HttpRequest:
        """A chat request of at least `size` bytes, its body cut into `messages`, and maybe an empty last one."""
        head = f'{{"model":"{self.described.model}","stream":true,"messages":[{{"role":"user","content":"'.encode()
        tail = b'"}]}'
        fill = max(size - len(head) - len(tail), 5)
        body = head + (b"Hello, this is a conformance check. " * (fill // 36 + 1))[:fill] + tail
        step = -(-len(body) // messages)
        chunks = [body[at : at + step] for at in range(0, len(body), step)]
        return HttpRequest(chunks=tuple([*chunks, b""] if empty_end else chunks), trailers=trailers)


def get(path: str = "/v1/models") -> HttpRequest:
    """A request without a body."""
    return HttpRequest(method="GET", path=path, headers=(("accept", b"*/*"),))
