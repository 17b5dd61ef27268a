"""One HTTP/2 connection as a state machine (RFC 9113): bytes in, calls to receivers and bytes out.

It does no I/O. A peer that breaks the protocol or a limit loses its connection (GOAWAY) or the stream (RST_STREAM).
"""

from collections.abc import Callable

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.blocks import HeaderBlock, HeaderBlocks
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.flood import RateLimit
from epp.extproc.transport.http2.frames import FrameReader, FrameType, SettingCode
from epp.extproc.transport.http2.governance import Governance
from epp.extproc.transport.http2.headers import HeaderDecoder, RequestHead
from epp.extproc.transport.http2.intake import Intake
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.memory import ConnectionMemory, Memory
from epp.extproc.transport.http2.sender import Sender
from epp.extproc.transport.http2.stream import Receiver, Stream
from epp.extproc.transport.http2.table import StreamTable

Accept = Callable[["Connection", Stream, RequestHead], Receiver]

_DEFAULT_WINDOW = 65_535
_GOAWAY_SIZE = 8
_MOST_UNTOLD = 1024
"""Streams that a peer may open before it has acknowledged a lower limit (RFC 9113 6.5.3): a proxy that opens a
connection for a burst of requests cannot know it yet."""


class Connection:
    """The server's side of one connection.

    `accept` makes the receiver of a new stream. `receive` takes the peer's bytes, `sender.take` gives those to send.
    """

    def __init__(self, limits: Limits, accept: Accept, memory: Memory, clock: Callable[[], float]) -> None:
        self.closing = False
        """No stream is accepted any more; once `streams` is empty the connection is over."""
        self.fault: H2ConnectionError | None = None
        """What broke the connection, if anything: send what is left and hang up."""
        self.memory = ConnectionMemory(limits.connection_buffer_bytes, memory)
        self._limits = limits
        self._accept = accept
        self._preface_left = frames.PREFACE
        self._served_id = 0
        self._drained = False
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._blocks = HeaderBlocks(2 * limits.header_bytes)
        flood = RateLimit(limits.control_frames_per_second, limits.control_burst, clock, "frames that move no data")
        self._early_resets = RateLimit(
            limits.early_resets_per_second, limits.reset_burst, clock, "streams reset before their answer"
        )
        self._flood = flood
        self._table = StreamTable(flood)
        self.streams = self._table.open
        self.sender = Sender(room_below=limits.stream_send_bytes // 2, sent=self._on_sent, flood=flood, clock=clock)
        self._governance = Governance(self._table, self.sender, flood, self.finish_drain)
        self._intake = Intake(
            self._table, self.sender, flood, self.memory, window=limits.connection_window, clock=clock
        )
        self._handlers = self._by_type()
        self._reader = FrameReader(frames.MIN_MAX_FRAME_SIZE)
        self._greet()

    def _by_type(self) -> dict[int, Callable[[int, int, bytes], None]]:
        return {
            FrameType.DATA: self._intake.on_data,
            FrameType.HEADERS: self._on_headers,
            FrameType.PRIORITY: self._governance.on_priority,
            FrameType.RST_STREAM: self._on_rst_stream,
            FrameType.SETTINGS: self._governance.on_settings,
            FrameType.PUSH_PROMISE: self._on_push_promise,
            FrameType.PING: self._governance.on_ping,
            FrameType.GOAWAY: self._on_goaway,
            FrameType.WINDOW_UPDATE: self._governance.on_window_update,
            FrameType.CONTINUATION: self._on_continuation,
        }

    def _greet(self) -> None:
        limits = self._limits
        ours = {
            SettingCode.MAX_CONCURRENT_STREAMS: limits.streams,
            SettingCode.INITIAL_WINDOW_SIZE: limits.stream_window,
            SettingCode.MAX_HEADER_LIST_SIZE: limits.header_bytes,
        }
        self.sender.control(frames.settings(ours))
        self.sender.control(frames.window_update(0, limits.connection_window - _DEFAULT_WINDOW))

    # --- What the owner calls

    @property
    def ready(self) -> bool:
        """Whether both sides have each other's SETTINGS."""
        return self._governance.acknowledged

    @property
    def over(self) -> bool:
        """Whether nothing more will be sent: time to hang up."""
        return self.fault is not None or (self.closing and not self.streams and not self.sender.waits)

    def receive(self, data: bytes) -> None:
        """Take bytes of the peer. Never raises for what they hold: see `fault`."""
        if self.fault is not None:
            return
        try:
            if self._preface_left:
                data = self._on_preface(data)
            for kind, flags, stream_id, payload in self._reader.feed(data):
                if self._blocks.unfinished is not None or not self._governance.greeted:
                    self._check_order(kind, flags, stream_id)
                try:
                    self._handlers.get(kind, self._governance.on_unknown)(flags, stream_id, payload)
                except H2StreamError as error:
                    self._on_stream_error(stream_id, error)
        except H2ConnectionError as error:
            self.fail(error)

    def fail(self, error: H2ConnectionError) -> None:
        """End the connection now: say why, and tell every receiver."""
        if self.fault is None:
            self.fault = error
            self.sender.control(frames.goaway(self._served_id, error.code, error.reason))
            self.abandon()

    def abandon(self) -> None:
        """The connection is gone: every stream ends."""
        self.closing = True
        for stream in list(self.streams.values()):
            self._forget(stream)

    def drain(self) -> None:
        """Ask the peer to open no more streams; those that it opens before it has heard are still served."""
        if not self.closing:
            self.sender.control(frames.goaway(frames.MAX_WINDOW, ErrorCode.NO_ERROR))
            self._governance.ping_drain()

    def finish_drain(self) -> None:
        """The peer has had time to hear: streams that it opens from now on are not served."""
        if not self._drained:
            self._drained = self.closing = True
            self.sender.control(frames.goaway(self._served_id, ErrorCode.NO_ERROR))

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._governance.ping()

    def tend(self, stalled_since: float) -> None:
        """Reset the streams whose peer has taken no answer, or not finished a message, since then.

        Grants what memory forbade before.
        """
        waiting = [*self.sender.stalled.items(), *self._intake.unfinished.items()]
        for stream in [stream for stream, at in waiting if at < stalled_since]:
            self.reset(stream, ErrorCode.CANCEL)
        self._intake.grant()

    # --- What receivers call

    def settle(self, stream: Stream) -> None:
        """Some of what the stream held has been read: the peer may send as much more."""
        self._intake.settle(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once."""
        if self._table.holds(stream):
            self.sender.control(frames.rst_stream(stream.id, code))
            self._forget(stream)

    # --- Frames that open and end streams

    def _on_preface(self, data: bytes) -> bytes:
        part = data[: len(self._preface_left)]
        if not self._preface_left.startswith(part):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "not the HTTP/2 preface")
        self._preface_left = self._preface_left[len(part) :]
        return data[len(part) :]

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        if not self._governance.greeted and (kind != FrameType.SETTINGS or flags & frames.ACK):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        block = self._blocks.unfinished
        if block is not None and (kind != FrameType.CONTINUATION or stream_id != block.stream_id):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block must not be interrupted")

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that no client opens")
        block = self._blocks.begin(flags, stream_id, payload)
        if block is not None:
            self._on_header_block(block)

    def _on_continuation(self, flags: int, _stream_id: int, payload: bytes) -> None:
        block = self._blocks.add(flags, payload)
        if block is not None:
            self._on_header_block(block)

    def _on_header_block(self, block: HeaderBlock) -> None:
        stream = self.streams.get(block.stream_id)
        if stream is not None:
            self._on_trailers(stream, block)
        elif block.stream_id > self._table.highest_id:
            self._table.highest_id = block.stream_id
            self._open(block)
        else:
            self._table.check_late_block(block.stream_id)
            self._decoder.trailers(block.fragment)

    def _open(self, block: HeaderBlock) -> None:
        head = self._decoder.request(block.fragment)
        if self.closing:
            self._table.remember(block.stream_id, by_peer=False)
            return
        self._served_id = block.stream_id
        if block.self_dependent:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "stream that depends on itself")
        most = self._limits.streams if self._governance.acknowledged else max(self._limits.streams, _MOST_UNTOLD)
        if len(self.streams) >= most:
            raise H2StreamError(ErrorCode.REFUSED_STREAM, "too many streams")
        stream = Stream(
            block.stream_id,
            receive_window=self._limits.stream_window,
            send_window=self.sender.peer.initial_window,
            expected=head.content_length,
        )
        if block.ends:
            stream.expect(0, ended=True)
        self.streams[stream.id] = stream
        stream.receiver = self._accept(self, stream, head)
        if block.ends:
            self._intake.half_close(stream)

    def _on_trailers(self, stream: Stream, block: HeaderBlock) -> None:
        if stream.remote_closed:
            self._decoder.skip(block.fragment)
            raise H2StreamError(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        self._decoder.trailers(block.fragment)
        if not block.ends:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        stream.expect(0, ended=True)
        self._intake.half_close(stream)

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        frames.word_in(payload, "RST_STREAM")
        stream = self._table.find("RST_STREAM", stream_id)
        if stream is not None:
            if not stream.answered:
                self._early_resets.count()
            stream.remote_closed = True
            self._forget(stream)

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._flood.count()
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < _GOAWAY_SIZE:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY cut short")
        self.closing = True

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    # --- Ends

    def _on_stream_error(self, stream_id: int, error: H2StreamError) -> None:
        self._flood.count()
        self.sender.control(frames.rst_stream(stream_id, error.code))
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
        else:
            self._table.remember(stream_id, by_peer=False)

    def _on_sent(self, stream: Stream) -> None:
        """Some of what the stream had to say has left, or all of it."""
        if self._table.holds(stream):
            if stream.local_closed:
                self._remove(stream)
            else:
                self._intake.count(stream)

    def _forget(self, stream: Stream) -> None:
        """The stream ended out of order."""
        receiver = stream.receiver
        self.sender.forget(stream)
        self._remove(stream)
        if receiver is not None:
            receiver.closed()

    def _remove(self, stream: Stream) -> None:
        self._table.remove(stream)
        self._intake.forget(stream)
        stream.receiver = None  # each holds the other: without this every stream would wait for the garbage collector
