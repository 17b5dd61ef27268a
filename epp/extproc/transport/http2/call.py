"""One gRPC call: HTTP/2 stream below, messages above."""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from epp.extproc.exchange import ProtocolError
from epp.extproc.transport.http2.connection import Connection
from epp.extproc.transport.http2.messages import PREFIX_SIZE, MessageReader, prefix
from epp.extproc.transport.http2.request import NotGrpc
from epp.extproc.transport.http2.status import RESPONSE_HEADERS, GrpcError, Status, trailers, trailers_only
from epp.extproc.transport.http2.stream import Stream as Http2Stream
from epp.extproc.transport.stream import Serve, StreamGoneError

_log = structlog.get_logger(__name__)


class Call:
    """Receives a stream's data and is the `Stream` that `serve` reads and writes, in a task of its own.

    `wake` is called when something has been queued, so that it leaves together with what else this turn brings.
    """

    __slots__ = (
        "_connection",
        "_deadline",
        "_gone",
        "_headers_sent",
        "_loop",
        "_max_queued_bytes",
        "_messages",
        "_no_more",
        "_reader",
        "_reading",
        "_stream",
        "_wake",
        "_writing",
        "task",
    )

    def __init__(
        self,
        connection: Connection,
        stream: Http2Stream,
        *,
        max_message_bytes: int,
        max_queued_bytes: int,
        wake: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._max_queued_bytes = max_queued_bytes
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._reader = MessageReader(max_message_bytes)
        self._messages: deque[bytes] = deque()
        self._no_more = False
        self._gone = False
        self._headers_sent = False
        self._reading: asyncio.Future[bytes | None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def begin(self, serve: Serve, timeout: float | None) -> None:
        """Serve the call, for at most `timeout` seconds."""
        self.task = self._loop.create_task(self._run(serve))
        if timeout is not None:
            self._deadline = self._loop.call_later(timeout, self._expire)

    def finish(self, status: Status, text: str = "") -> None:
        """End our side; later reads and writes raise StreamGoneError."""
        if not self._gone:
            self._gone = True
            if self._deadline is not None:
                self._deadline.cancel()
            self._stream.end(trailers(status, text) if self._headers_sent else trailers_only(status, text))
            self._connection.sender.schedule(self._stream)
            self._wake()

    # --- Stream, for the servicer

    async def read(self) -> bytes | None:
        """The next message; None: no more will come. Raises StreamGoneError."""
        if self._messages:
            return self._next()
        if self._gone:
            raise StreamGoneError
        if self._no_more:
            return None
        self._reading = self._loop.create_future()
        return await self._reading

    async def write(self, message: bytes) -> None:
        """Queue one message; waits while too much is queued. Raises StreamGoneError."""
        if self._gone:
            raise StreamGoneError
        stream = self._stream
        if not self._headers_sent:
            self._headers_sent = True
            stream.send_headers(RESPONSE_HEADERS)
        stream.send(prefix(len(message)), message)
        if not stream.scheduled:
            self._connection.sender.schedule(stream)
            self._wake()
        if stream.queued > self._max_queued_bytes:
            stream.wants_room = True
            self._writing = self._loop.create_future()
            await self._writing

    # --- Receiver, for the connection

    def data(self, payload: bytes) -> None:
        """Hand on the messages that `payload` completes."""
        if self._gone:
            return
        stream = self._stream
        try:
            messages = self._reader.feed(payload)
            stream.partial = len(self._reader.partial)
            if stream.partial and self._connection.memory.full:
                raise GrpcError(Status.RESOURCE_EXHAUSTED, "too much is buffered already")
        except GrpcError as error:
            self._break(error.status, error.text)
            return
        for message in messages:
            if self._reading is not None and not self._reading.done():
                self._reading.set_result(message)
            else:
                self._messages.append(message)
                stream.held += PREFIX_SIZE + len(message)

    def half_closed(self) -> None:
        """No more messages will come."""
        if self._reader.partial:
            self._break(Status.INTERNAL, "the last message is cut short")
            return
        self._no_more = True
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def closed(self) -> None:
        """The stream is gone: stop serving it."""
        self._gone = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._stop_task()

    def writable(self) -> None:
        """There is room for more answers."""
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    # --- Within

    def _next(self) -> bytes:
        """The oldest message held. Windows and memory hear of it when half of what they count has been read."""
        message = self._messages.popleft()
        stream = self._stream
        stream.held -= PREFIX_SIZE + len(message)
        if stream.held * 2 <= stream.counted:
            self._connection.settle(stream)
            if self._connection.sender.waits:
                self._wake()
        return message

    async def _run(self, serve: Serve) -> None:
        try:
            await serve(self)
        except StreamGoneError:
            self.finish(Status.UNAVAILABLE)
        except GrpcError as error:
            self.finish(error.status, error.text)
        except ProtocolError as error:
            self.finish(Status.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            self.finish(Status.UNAVAILABLE, "the server stops")
            raise
        except Exception:  # noqa: BLE001 - whatever fails in one call must not end the connection of all others
            _log.exception("serving a stream failed")
            self.finish(Status.INTERNAL)
        else:
            self.finish(Status.OK)

    def _expire(self) -> None:
        self._break(Status.DEADLINE_EXCEEDED, "grpc-timeout is over")

    def _break(self, status: Status, text: str) -> None:
        self.finish(status, text)
        self._stop_task()

    def _stop_task(self) -> None:
        if self.task is not None:
            self.task.cancel()


_REFUSAL_SECONDS = 0.25
"""A refusal waits this long for the end of its request: an answer before it would race the check of what follows."""


class RefusedCall:
    """A request that is answered without being served; whatever else it brings is dropped."""

    def __init__(self, connection: Connection, stream: Http2Stream, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._stream = stream
        self._wake = wake
        self._answer: Callable[[], None] | None = None
        self._patience: asyncio.TimerHandle | None = None

    def refuse(self, error: GrpcError, more: bytes) -> None:
        """Answer with a gRPC status; `more` are further fields."""
        self._hold(lambda: self._stream.end(trailers_only(error.status, error.text) + more))

    def refuse_http(self, answer: NotGrpc) -> None:
        """Answer with an HTTP status and its reason as text."""

        def send() -> None:
            self._stream.send_headers(answer.headers())
            self._stream.send(answer.text.encode())
            self._stream.end(answer.trailers())

        self._hold(send)

    def data(self, payload: bytes) -> None: ...

    def half_closed(self) -> None:
        """The request is over: nothing of it can be wrong any more."""
        self._send()

    def closed(self) -> None:
        """Nobody waits for the answer."""
        self._answer = None
        self._send()

    def writable(self) -> None: ...

    def _hold(self, answer: Callable[[], None]) -> None:
        self._answer = answer
        self._patience = asyncio.get_running_loop().call_later(_REFUSAL_SECONDS, self._send)

    def _send(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer()
            self._connection.sender.schedule(self._stream)
            self._wake()
