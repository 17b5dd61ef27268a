"""HTTP/2 in plain text with trailers both ways: a worker that sends every body back, and a client."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

Headers = list[tuple[str, str]]


@dataclass
class Message:
    """One direction of a stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)
    whole: asyncio.Event = field(default_factory=asyncio.Event)
    reset: bool = False


class Http2(asyncio.Protocol):
    """One connection; gathers what comes and sends under flow control."""

    def __init__(self, *, client: bool) -> None:
        self.connection = H2Connection(H2Configuration(client_side=client, header_encoding="utf-8"))
        self.messages: dict[int, Message] = {}
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.connection.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for message in self.messages.values():
            message.reset = not message.whole.is_set()
            message.whole.set()
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self.take(event)
        self.flush()

    def take(self, event: Event) -> None:
        if isinstance(event, WindowUpdated):
            self._room.set()
        elif isinstance(event, ConnectionTerminated):
            self.transport.close()
        stream = getattr(event, "stream_id", None)
        if not stream:
            return
        message = self.messages.setdefault(stream, Message())
        if isinstance(event, RequestReceived | ResponseReceived):
            message.headers = dict(event.headers)
        elif isinstance(event, DataReceived):
            message.body += event.data
            self.connection.acknowledge_received_data(event.flow_controlled_length, stream)
        elif isinstance(event, TrailersReceived):
            message.trailers = dict(event.headers)
        elif isinstance(event, StreamEnded | StreamReset):
            message.reset = isinstance(event, StreamReset)
            message.whole.set()
            self.on_whole(stream, message)

    def on_whole(self, stream: int, message: Message) -> None:
        """A message came to its end."""

    def flush(self) -> None:
        self.transport.write(self.connection.data_to_send())

    def run(self, work: "asyncio.Future[None] | object") -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, stream: int, headers: Headers, pieces: Iterable[bytes], trailers: Headers) -> None:
        """One whole message; it ends by its trailers where there are any."""
        pieces = list(pieces)
        self.connection.send_headers(stream, headers, end_stream=not pieces and not trailers)
        for at, piece in enumerate(pieces, start=1):
            await self._send_data(stream, piece, end=at == len(pieces) and not trailers)
        if trailers:
            self.connection.send_headers(stream, trailers, end_stream=True)
        self.flush()

    async def _send_data(self, stream: int, data: bytes, *, end: bool) -> None:
        view = memoryview(data)
        while True:
            size = min(
                self.connection.local_flow_control_window(stream), self.connection.max_outbound_frame_size, len(view)
            )
            if size or not len(view):
                last = size == len(view)
                self.connection.send_data(stream, bytes(view[:size]), end_stream=end and last)
                self.flush()
                view = view[size:]
                if last:
                    return
            else:
                self._room.clear()
                await self._room.wait()


class EchoWorker(Http2):
    """Sends each request's body back, with trailers when the request had some or speaks gRPC."""

    def __init__(self) -> None:
        super().__init__(client=False)

    def on_whole(self, stream: int, message: Message) -> None:
        if not message.reset:
            self.run(self._answer(stream, message))

    async def _answer(self, stream: int, message: Message) -> None:
        grpc = message.headers.get("content-type", "") == "application/grpc"
        headers = [(":status", "200"), ("content-type", message.headers.get("content-type", "application/json"))]
        trailers = [("grpc-status", "0")] if grpc else [(f"x-back-{k}", v) for k, v in message.trailers.items()]
        body = bytes(message.body)
        pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)] or [b"{}"]
        await self.send(stream, headers, pieces, trailers)


@asynccontextmanager
async def echo_worker() -> AsyncIterator[int]:
    """The port of an HTTP/2 echo worker."""
    server = await asyncio.get_running_loop().create_server(EchoWorker, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def ask(
    port: int, method: str, path: str, *, headers: Headers = (), pieces: Iterable[bytes] = (), trailers: Headers = ()
) -> Message:
    """One request on a connection of its own."""
    transport, http2 = await asyncio.get_running_loop().create_connection(lambda: Http2(client=True), "127.0.0.1", port)
    try:
        stream = http2.connection.get_next_available_stream_id()
        message = http2.messages.setdefault(stream, Message())
        pseudo = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test")]
        sending = asyncio.ensure_future(http2.send(stream, [*pseudo, *headers], pieces, list(trailers)))
        await asyncio.wait_for(message.whole.wait(), 20)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return message
    finally:
        transport.close()
