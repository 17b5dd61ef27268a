"""One HTTP/2 stream: its state, its windows, and the answers that wait for the peer."""

from collections import deque
from typing import Protocol

from epp.extproc.transport.http2.errors import ErrorCode, H2StreamError
from epp.extproc.transport.http2.frames import END_HEADERS, END_STREAM, FrameType, frame, frame_header, rst_stream
from epp.extproc.transport.http2.windows import ReceiveWindow


class Receiver(Protocol):
    """Takes what the peer sends on one stream."""

    def data(self, payload: bytes) -> None:
        """The next bytes of the body."""

    def half_closed(self) -> None:
        """The peer will send no more."""

    def closed(self) -> None:
        """The stream is gone before its orderly end: nothing more can be sent or received."""

    def writable(self) -> None:
        """What waited for the peer is nearly all sent."""


class Stream:
    """A stream from its HEADERS to its end. It ends when our side has ended, since the answer is then whole."""

    __slots__ = (
        "_end_block",
        "_head_block",
        "_queue",
        "answered",
        "counted",
        "expected",
        "held",
        "id",
        "local_closed",
        "partial",
        "queued",
        "receive_window",
        "receiver",
        "remote_closed",
        "scheduled",
        "send_window",
        "wants_room",
    )

    def __init__(self, stream_id: int, *, receive_window: int, send_window: int, expected: int | None) -> None:
        self.id = stream_id
        self.receiver: Receiver | None = None
        self.receive_window = ReceiveWindow(receive_window)
        self.send_window = send_window
        self.expected = expected
        """Bytes still to come by the request's content-length, if it has one."""
        self.remote_closed = False
        self.local_closed = False
        self.answered = False
        """Whether the peer has been sent anything."""
        self.held = 0
        """Received bytes of whole messages that nobody has read yet: they keep the window shut."""
        self.partial = 0
        """Received bytes of a message that is not whole yet."""
        self.queued = 0
        """Body bytes that wait to be sent."""
        self.counted = 0
        """What the connection's memory counts for this stream."""
        self.wants_room = False
        """Whether the receiver waits for `writable`."""
        self.scheduled = False
        """Whether the sender has it in a queue."""
        self._head_block: bytes | None = None
        self._end_block: bytes | None = None
        self._queue: deque[bytes | memoryview] = deque()

    def expect(self, count: int, *, ended: bool) -> None:
        """Hold the body against its content-length. Raises H2StreamError when it is another."""
        if self.expected is not None:
            self.expected -= count
            if self.expected < 0 or (ended and self.expected):
                raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "body of another size than its content-length")

    def send_headers(self, block: bytes) -> None:
        """Queue the response's header block, shorter than any frame size limit."""
        self._head_block = block

    def send(self, *pieces: bytes) -> None:
        """Queue body bytes behind what already waits."""
        self._queue += pieces
        for piece in pieces:
            self.queued += len(piece)

    def end(self, block: bytes) -> None:
        """Queue the trailers, which end our side; without headers before them they are the whole response."""
        self._end_block = block

    def forget(self) -> None:
        """Drop what waits: the stream is gone."""
        self._queue.clear()
        self._head_block = self._end_block = None
        self.queued = 0
        self.local_closed = True

    @property
    def waits(self) -> bool:
        """Whether anything is still to be sent."""
        return bool(self.queued or self._end_block is not None or self._head_block is not None)

    def emit(self, out: list[bytes | memoryview], *, window: int, frame_size: int) -> int:
        """Move to `out` what may leave, at most `window` bytes of body; returns how many."""
        if self._head_block is not None:
            out.append(frame(FrameType.HEADERS, END_HEADERS, self.id, self._head_block))
            self._head_block = None
            self.answered = True
        sent = self.queued
        if sent > frame_size or sent > window or sent > self.send_window:
            sent = self._emit_some(out, min(window, self.send_window), frame_size)
        elif sent:
            out.append(frame_header(FrameType.DATA, 0, self.id, sent))
            out += self._queue
            self._queue.clear()
        self.send_window -= sent
        self.queued -= sent
        if self._end_block is not None and not self.queued:
            self._emit_end(out, self._end_block)
        return sent

    def _emit_end(self, out: list[bytes | memoryview], block: bytes) -> None:
        out.append(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, self.id, block))
        self._end_block = None
        self.answered = self.local_closed = True
        if not self.remote_closed:
            # The answer is whole: what the peer still sends would be for nothing (RFC 9113 8.1).
            out.append(rst_stream(self.id, ErrorCode.NO_ERROR))

    def _emit_some(self, out: list[bytes | memoryview], allowed: int, frame_size: int) -> int:
        """As much of the body as is allowed, in as many frames as it takes."""
        sent = 0
        while self._queue and sent < allowed:
            sent += self._emit_frame(out, min(allowed - sent, frame_size))
        return sent

    def _emit_frame(self, out: list[bytes | memoryview], size: int) -> int:
        """One frame of at most `size` bytes, filled from as many pieces as it takes."""
        at = len(out)
        left = size
        while left and self._queue:
            piece = self._queue.popleft()
            if len(piece) > left:
                view = memoryview(piece)
                self._queue.appendleft(view[left:])
                piece = view[:left]
            left -= len(piece)
            out.append(piece)
        out.insert(at, frame_header(FrameType.DATA, 0, self.id, size - left))
        return size - left
