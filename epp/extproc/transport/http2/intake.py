"""What is received: DATA to its stream, and no more of it than the windows and the memory allow."""

from collections.abc import Callable

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.flood import RateLimit
from epp.extproc.transport.http2.frames import END_STREAM, PADDED
from epp.extproc.transport.http2.memory import ConnectionMemory
from epp.extproc.transport.http2.sender import Sender
from epp.extproc.transport.http2.stream import Stream
from epp.extproc.transport.http2.table import StreamTable
from epp.extproc.transport.http2.windows import ReceiveWindow


class Intake:
    """The receiving half of one connection."""

    def __init__(
        self,
        table: StreamTable,
        sender: Sender,
        flood: RateLimit,
        memory: ConnectionMemory,
        *,
        window: int,
        clock: Callable[[], float],
    ) -> None:
        self.unfinished: dict[Stream, float] = {}
        """Streams with a message half received, since when."""
        self._table = table
        self._open = table.open
        self._sender = sender
        self._flood = flood
        self._memory = memory
        self._window = ReceiveWindow(window)
        self._clock = clock

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A DATA frame. Every token of every response is one: what is seldom needed is asked for by one comparison."""
        size = len(payload)
        window = self._window
        window.due += size
        if window.due > window.size:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if flags & PADDED:
            payload = frames.without_padding(payload, flags)
        stream = self._open.get(stream_id) or self._table.find("DATA", stream_id)
        if stream is not None:
            if stream.remote_closed:
                raise H2StreamError(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
            own = stream.receive_window
            own.due += size
            if own.due > own.size:
                raise H2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window")
            self._deliver(stream, payload, flags & END_STREAM)
        if window.due >= window.half:
            self.grant()

    def _deliver(self, stream: Stream, payload: bytes, ended: int) -> None:
        if stream.expected is not None:
            stream.expect(len(payload), ended=bool(ended))
        if payload and stream.receiver is not None:
            before = stream.partial
            stream.receiver.data(payload)
            if stream.partial or before:
                self._time_message(stream, goes_on=stream.partial == before + len(payload))
            if stream.held + stream.partial + stream.queued != stream.counted:
                self.count(stream)
        elif not ended:
            self._flood.count()
        if ended:
            self.half_close(stream)
        elif stream.receive_window.due >= stream.receive_window.half:
            self._grant_stream(stream)

    def _time_message(self, stream: Stream, *, goes_on: bool) -> None:
        """Remember when a message began to come that is not whole; `goes_on`: still the same one as before."""
        if not stream.partial:
            self.unfinished.pop(stream, None)
        elif not goes_on or stream not in self.unfinished:
            self.unfinished[stream] = self._clock()

    def half_close(self, stream: Stream) -> None:
        """The peer will send no more on the stream."""
        stream.remote_closed = True
        if stream.receiver is not None and self._table.holds(stream):
            stream.receiver.half_closed()

    def forget(self, stream: Stream) -> None:
        """The stream has ended."""
        stream.held = stream.partial = 0
        self.unfinished.pop(stream, None)
        if stream.counted or stream.queued:
            self.count(stream)

    def settle(self, stream: Stream) -> None:
        """Some of what the stream held has been read: the peer may send as much more."""
        if self._table.holds(stream):
            self.count(stream)
            self._grant_stream(stream)

    def count(self, stream: Stream) -> None:
        """Bring the memory up to date with what the stream holds."""
        now = stream.held + stream.partial + stream.queued
        was_full = self._memory.full
        self._memory.add(now - stream.counted)
        stream.counted = now
        if was_full:
            self.grant()

    def grant(self) -> None:
        """Let the peer send more on the connection, if that is due and memory allows it."""
        increment = 0 if self._memory.full else self._window.grant(0)
        if increment:
            self._sender.control(frames.window_update(0, increment))

    def _grant_stream(self, stream: Stream) -> None:
        increment = stream.receive_window.grant(stream.held)
        if increment and self._table.holds(stream):
            self._sender.control(frames.window_update(stream.id, increment))
