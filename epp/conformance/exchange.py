"""Plays one HTTP request and its response to the target, message by message as a proxy does in the modes it has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from epp._pb.external_processor_pb2 import (
    BodyResponse,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
)
from epp.conformance import messages
from epp.conformance.messages import BUFFERED, BUFFERED_PARTIAL, DUPLEX, NONE, HttpRequest, HttpResponse, Modes, Shape
from epp.conformance.stream import Stream

Done = Callable[[ProcessingResponse], bool]


class Ending(StrEnum):
    """How one half of an exchange ended."""

    COMPLETE = "complete"
    """All that the proxy waits for has come."""
    REFUSED = "refused"
    """An ImmediateResponse came instead."""
    SILENT = "silent"
    """An answer did not come in time: the client hangs."""
    BROKEN = "broken"
    """The RPC ended before all answers had come."""


@dataclass(slots=True)
class Half:
    """What came back for one half of an exchange."""

    what: str
    """What was sent, for people."""
    answers: list[ProcessingResponse] = field(default_factory=list)
    ending: Ending = Ending.COMPLETE
    end: str = ""
    """How the RPC ended, when it did."""

    @property
    def complete(self) -> bool:
        """Whether the proxy got all that it waits for."""
        return self.ending is Ending.COMPLETE

    @property
    def kinds(self) -> list[str]:
        """The kind of each answer; `none` for kinds that the protocol does not know."""
        return [kind(answer) for answer in self.answers]

    @property
    def immediate(self) -> ImmediateResponse | None:
        """The ImmediateResponse, if there was one."""
        return self.answers[-1].immediate_response if self.ending is Ending.REFUSED else None

    def bodies(self, name: str) -> list[BodyResponse]:
        """The answers of that kind, `request_body` or `response_body`."""
        return [getattr(answer, name) for answer in self.answers if kind(answer) == name]

    def pieces(self, name: str) -> list[StreamedBodyResponse]:
        """The pieces of the body that were sent on."""
        return [body.response.body_mutation.streamed_response for body in self.bodies(name)]

    def sent_on(self, name: str) -> bytes:
        """The body that was sent on in pieces."""
        return b"".join(piece.body for piece in self.pieces(name))

    def __str__(self) -> str:
        if self.complete:
            return f"{self.what}: {_list(self.kinds)}"
        if self.immediate is not None:
            return f"{self.what}: ImmediateResponse {self.immediate.status.code}"
        after = f" after {_list(self.kinds)}" if self.answers else ""
        if self.ending is Ending.SILENT:
            return f"{self.what}: no answer in time{after}"
        return f"{self.what}: the RPC ended with {self.end}{after or ' before any answer'}"


class Exchange:
    """One HTTP exchange, played over one stream."""

    def __init__(self, stream: Stream, *, modes: Modes, shape: Shape) -> None:
        self.stream = stream
        self._modes = modes
        self._shape = shape

    async def request(self, request: HttpRequest, *, subset: list[str] | None = None) -> Half:
        """Send the request, and collect what comes back until the proxy could send it on."""
        half = Half(str(request))
        head = messages.request_headers(request, modes=self._modes, shape=self._shape, subset=subset)
        if request.bare or self._modes.request_body == NONE:
            await self._turn(half, head, "request_headers")
        elif self._modes.request_body == DUPLEX:
            await self._all_at_once(half, [head, *_request_rest(request)], _last_of(request))
        else:
            await self._turns(half, head, _in_turns(request.chunks, self._modes.request_body), "request")
        return half

    async def begin(self, request: HttpRequest, *, pieces: int) -> None:
        """Send the headers and so many pieces of the body in full duplex, and wait for nothing."""
        await self.stream.send(messages.request_headers(request, modes=self._modes, shape=self._shape, subset=None))
        for chunk in request.chunks[:pieces]:
            await self.stream.send(messages.request_body(chunk, end=False))

    async def request_and_half_close(self, request: HttpRequest) -> Half:
        """Send a request in full duplex, say at once that no more comes, then collect what comes back."""
        half = Half(f"{request}, then half-close")
        await self.stream.send(messages.request_headers(request, modes=self._modes, shape=self._shape, subset=None))
        for message in _request_rest(request):
            await self.stream.send(message)
        await self.stream.half_close()
        await self.collect(half, _last_of(request))
        return half

    async def repeat_end(self, chunk: bytes) -> Half:
        """Send the last chunk of a finished request again, then response headers; collect up to their answer."""
        half = Half("response")
        await self.stream.send(messages.request_body(chunk, end=True))
        await self._turn(half, messages.response_headers(HttpResponse()), "response_headers")
        return half

    async def respond(self, response: HttpResponse, *, in_turn: bool = False) -> Half:
        """Send the response, and collect what comes back; `in_turn`: each chunk only when the last one is back."""
        half = Half(f"response {response.status}, {len(response.body)} bytes in {len(response.chunks)} messages")
        head = messages.response_headers(response)
        mode = self._modes.response_body
        bare = not response.chunks and not response.trailers
        if bare or mode == NONE:
            await self._turn(half, head, "response_headers")
        elif mode == DUPLEX and in_turn:
            if await self._turn(half, head, "response_headers"):
                await self._echo(half, response)
        elif mode == DUPLEX:
            rest = _response_rest(response)
            await self._all_at_once(half, [head, *rest], _end_of("response", response.trailers))
        else:
            await self._turns(half, head, _in_turns(response.chunks, mode), "response")
        return half

    async def collect(self, half: Half, done: Done) -> bool:
        """Take answers until one is `done`; False when that does not come to pass."""
        while True:
            answer = await self.stream.next()
            if answer is None:
                half.ending = Ending.BROKEN if self.stream.end else Ending.SILENT
                half.end = self.stream.end
                return False
            half.answers.append(answer)
            if kind(answer) == "immediate_response":
                half.ending = Ending.REFUSED
                return False
            if done(answer):
                return True

    async def _turn(self, half: Half, message: ProcessingRequest, name: str) -> bool:
        await self.stream.send(message)
        return await self.collect(half, lambda answer: kind(answer) == name)

    async def _all_at_once(self, half: Half, all_: list[ProcessingRequest], done: Done) -> None:
        for message in all_:
            await self.stream.send(message)
        await self.collect(half, done)

    async def _turns(self, half: Half, head: ProcessingRequest, bodies: list[bytes], side: str) -> None:
        make = messages.request_body if side == "request" else messages.response_body
        going = await self._turn(half, head, f"{side}_headers")
        for at, body in enumerate(bodies, start=1):
            going = going and await self._turn(half, make(body, end=at == len(bodies)), f"{side}_body")

    async def _echo(self, half: Half, response: HttpResponse) -> bool:
        sent = 0
        for message in _response_rest(response):
            if message.HasField("response_trailers"):
                return await self._turn(half, message, "response_trailers")
            await self.stream.send(message)
            sent += len(message.response_body.body)
            while not _back(half, sent, message.response_body.end_of_stream):
                if not await self.collect(half, lambda answer: kind(answer) == "response_body"):
                    return False
        return True


def kind(answer: ProcessingResponse) -> str:
    """Which message an answer answers."""
    return answer.WhichOneof("response") or "none"


def _back(half: Half, size: int, end: bool) -> bool:
    """Whether so many bytes of the response have come back, and their end if it was sent."""
    pieces = half.pieces("response_body")
    return sum(len(piece.body) for piece in pieces) >= size and (
        not end or any(piece.end_of_stream for piece in pieces)
    )


def _request_rest(request: HttpRequest) -> list[ProcessingRequest]:
    """What follows the headers."""
    last = len(request.chunks) if not request.trailers else 0
    rest = [messages.request_body(chunk, end=at == last) for at, chunk in enumerate(request.chunks, start=1)]
    return [*rest, messages.request_trailers()] if request.trailers else rest


def _response_rest(response: HttpResponse) -> list[ProcessingRequest]:
    """What follows the headers."""
    last = len(response.chunks) if not response.trailers else 0
    rest = [messages.response_body(chunk, end=at == last) for at, chunk in enumerate(response.chunks, start=1)]
    return [*rest, messages.response_trailers()] if response.trailers else rest


def _in_turns(chunks: tuple[bytes, ...], mode: int) -> list[bytes]:
    return [b"".join(chunks)] if mode in (BUFFERED, BUFFERED_PARTIAL) else list(chunks)


def _last_of(request: HttpRequest) -> Done:
    if request.bare:
        return lambda answer: kind(answer) == "request_headers"
    return _end_of("request", request.trailers)


def _end_of(side: str, trailers: bool) -> Done:
    """When the proxy has that half: its trailers are answered, or a piece says that the body ends."""
    if trailers:
        return lambda answer: kind(answer) == f"{side}_trailers"
    name = f"{side}_body"
    return lambda answer: (
        kind(answer) == name and bool(getattr(answer, name).response.body_mutation.streamed_response.end_of_stream)
    )


def _list(kinds: list[str]) -> str:
    """Kinds in order, repeated ones once with their number."""
    runs: list[tuple[str, int]] = []
    for name in kinds:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in runs[:8]) or "no answer"
