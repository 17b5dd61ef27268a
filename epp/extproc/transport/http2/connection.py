"""One HTTP/2 connection as a state machine (RFC 9113): bytes in, calls to receivers and bytes out.

It does no I/O. A peer that breaks the protocol or a limit loses its connection (GOAWAY) or the stream (RST_STREAM).
"""

from collections import OrderedDict
from collections.abc import Callable

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.blocks import HeaderBlock, HeaderBlocks
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.flood import RateLimit
from epp.extproc.transport.http2.frames import FrameReader, FrameType, SettingCode
from epp.extproc.transport.http2.headers import HeaderDecoder, RequestHead
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.memory import ConnectionMemory, Memory
from epp.extproc.transport.http2.sender import Sender
from epp.extproc.transport.http2.stream import Receiver, Stream
from epp.extproc.transport.http2.windows import ReceiveWindow

Accept = Callable[["Connection", Stream, RequestHead], Receiver]

_DEFAULT_WINDOW = 65_535
_PING_SIZE = 8
_GOAWAY_SIZE = 8
_PRIORITY_SIZE = 5
_REMEMBERED = 1024
"""Ended streams remembered, to tell a peer's mistakes from frames that crossed ours."""
_EARNED = 4
"""Control frames that the peer may send for each time we sent on a stream: window updates, a reset, a ping."""
_DRAIN_PING = b"epp-gone"
_ALIVE_PING = b"epp-ping"


class Connection:
    """The server's side of one connection.

    `accept` makes the receiver of a new stream. `receive` takes the peer's bytes, `sender.take` gives those to send.
    """

    def __init__(self, limits: Limits, accept: Accept, memory: Memory, clock: Callable[[], float]) -> None:
        self.ready = False
        """Whether both sides have each other's SETTINGS."""
        self.closing = False
        """No stream is accepted any more; once `streams` is empty the connection is over."""
        self.fault: H2ConnectionError | None = None
        """What broke the connection, if anything: send what is left and hang up."""
        self.streams: dict[int, Stream] = {}
        self.memory = ConnectionMemory(limits.connection_buffer_bytes, memory)
        self.sender = Sender(room_below=limits.stream_send_bytes // 2, sent=self._on_sent, clock=clock)
        self._limits = limits
        self._accept = accept
        self._reader = FrameReader(frames.MIN_MAX_FRAME_SIZE)
        self._preface_left = frames.PREFACE
        self._peer_settings_in = False
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._window = ReceiveWindow(limits.connection_window)
        self._highest_id = 0
        self._served_id = 0
        self._drained = False
        self._blocks = HeaderBlocks(2 * limits.header_bytes)
        self._ended: OrderedDict[int, bool] = OrderedDict()
        self._control = RateLimit(limits.control_frames_per_second, limits.control_burst, clock)
        self._resets = RateLimit(limits.early_resets_per_second, limits.reset_burst, clock)
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            FrameType.DATA: self._on_data,
            FrameType.HEADERS: self._on_headers,
            FrameType.PRIORITY: self._on_priority,
            FrameType.RST_STREAM: self._on_rst_stream,
            FrameType.SETTINGS: self._on_settings,
            FrameType.PUSH_PROMISE: self._on_push_promise,
            FrameType.PING: self._on_ping,
            FrameType.GOAWAY: self._on_goaway,
            FrameType.WINDOW_UPDATE: self._on_window_update,
            FrameType.CONTINUATION: self._on_continuation,
        }
        self._greet()

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

    def receive(self, data: bytes) -> None:
        """Take bytes of the peer. Never raises for what they hold: see `fault`."""
        if self.fault is not None:
            return
        try:
            if self._preface_left:
                data = self._on_preface(data)
            for kind, flags, stream_id, payload in self._reader.feed(data):
                self._on_frame(kind, flags, stream_id, payload)
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
            self.sender.control(frames.frame(FrameType.PING, 0, 0, _DRAIN_PING))

    def finish_drain(self) -> None:
        """The peer has had time to hear: streams that it opens from now on are not served."""
        if not self._drained:
            self._drained = self.closing = True
            self.sender.control(frames.goaway(self._served_id, ErrorCode.NO_ERROR))

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self.sender.control(frames.frame(FrameType.PING, 0, 0, _ALIVE_PING))

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once."""
        if self._is_open(stream):
            self.sender.control(frames.rst_stream(stream.id, code))
            self._forget(stream)

    def reset_stalled(self, since: float) -> None:
        """Reset the streams whose peer has taken none of their answers since then."""
        for stream in [stream for stream, at in self.sender.stalled.items() if at < since]:
            self.reset(stream, ErrorCode.CANCEL)

    @property
    def over(self) -> bool:
        """Whether nothing more will be sent: time to hang up."""
        return self.fault is not None or (self.closing and not self.streams and not self.sender.waits)

    # --- What receivers call

    def read(self, stream: Stream, count: int) -> None:
        """`count` held bytes of the stream have been read: the peer may send as many more."""
        if self._is_open(stream):
            stream.held -= count
            self._count_memory(stream)
            self._grant(stream)

    # --- Frames

    def _on_preface(self, data: bytes) -> bytes:
        part = data[: len(self._preface_left)]
        if not self._preface_left.startswith(part):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "not the HTTP/2 preface")
        self._preface_left = self._preface_left[len(part) :]
        return data[len(part) :]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._peer_settings_in and (kind != FrameType.SETTINGS or flags & frames.ACK):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        block = self._blocks.unfinished
        if block is not None and (kind != FrameType.CONTINUATION or stream_id != block.stream_id):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block must not be interrupted")
        handler = self._handlers.get(kind)
        if handler is None:
            self._count_control()
            return
        try:
            handler(flags, stream_id, payload)
        except H2StreamError as error:
            self._on_stream_error(stream_id, error)

    def _on_stream_error(self, stream_id: int, error: H2StreamError) -> None:
        self._count_control()
        self.sender.control(frames.rst_stream(stream_id, error.code))
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
        else:
            self._remember(stream_id, by_peer=False)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        if not self._window.take(size):
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if flags & frames.PADDED:
            payload = frames.without_padding(payload, flags)
        stream = self._stream("DATA", stream_id)
        if stream is not None:
            if stream.remote_closed:
                raise H2StreamError(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
            if not stream.receive_window.take(size):
                raise H2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window")
            self._deliver(stream, payload, ended=bool(flags & frames.END_STREAM))
        if not self.memory.full:
            self._grant_connection()

    def _deliver(self, stream: Stream, payload: bytes, *, ended: bool) -> None:
        if stream.expected is not None:
            stream.expect(len(payload), ended=ended)
        if payload and stream.receiver is not None:
            stream.receiver.data(payload)
            self._count_memory(stream)
        elif not ended:
            self._count_control()
        if ended:
            self._half_close(stream)
        elif self._is_open(stream):
            self._grant(stream)

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
        elif block.stream_id > self._highest_id:
            self._highest_id = block.stream_id
            self._open(block)
        else:
            self._on_late_block(block)

    def _on_late_block(self, block: HeaderBlock) -> None:
        """A header block for a stream that is not open: trailers that crossed our end of it, or a mistake."""
        self._count_control()
        by_peer = self._ended.get(block.stream_id)
        if by_peer is None:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "stream id lower than one before")
        if by_peer:
            raise H2ConnectionError(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        self._decoder.trailers(block.fragment)

    def _open(self, block: HeaderBlock) -> None:
        head = self._decoder.request(block.fragment)
        if self.closing:
            self._remember(block.stream_id, by_peer=False)
            return
        self._served_id = block.stream_id
        if block.self_dependent:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "stream that depends on itself")
        if len(self.streams) >= self._limits.streams:
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
            self._half_close(stream)

    def _on_trailers(self, stream: Stream, block: HeaderBlock) -> None:
        if stream.remote_closed:
            self._decoder.skip(block.fragment)
            raise H2StreamError(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        self._decoder.trailers(block.fragment)
        if not block.ends:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        stream.expect(0, ended=True)
        self._half_close(stream)

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._count_control()
        if stream_id == 0:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != _PRIORITY_SIZE:
            raise H2StreamError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if frames.depends_on(payload) == stream_id:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "stream that depends on itself")

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        frames.word_in(payload, "RST_STREAM")
        stream = self._stream("RST_STREAM", stream_id)
        if stream is not None:
            if not stream.answered and not self._resets.allows():
                raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams reset before their answer")
            stream.remote_closed = True
            self._forget(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            self._count_control()
            self.ready = True
            return
        self._count_control()
        before = self.sender.peer.initial_window
        self.sender.peer.apply(payload)
        self._peer_settings_in = True
        self.sender.control(frames.frame(FrameType.SETTINGS, frames.ACK, 0))
        change = self.sender.peer.initial_window - before
        if change:
            self._widen_all(change)

    def _widen_all(self, change: int) -> None:
        try:
            for stream in self.streams.values():
                self.sender.widen_stream(stream, change)
        except H2StreamError as error:
            raise H2ConnectionError(error.code, error.reason) from None

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_SIZE:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self._count_control()
        if not flags & frames.ACK:
            self.sender.control(frames.frame(FrameType.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING:
            self.finish_drain()

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < _GOAWAY_SIZE:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY cut short")
        self._count_control()
        self.closing = True

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        increment = frames.word_in(payload, "WINDOW_UPDATE") & frames.MAX_WINDOW
        self._count_control()
        if stream_id == 0:
            if increment == 0:
                raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self.sender.widen(increment)
            return
        stream = self._stream("WINDOW_UPDATE", stream_id)
        if increment == 0:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        if stream is not None:
            self.sender.widen_stream(stream, increment)

    # --- Windows, memory, ends

    def _stream(self, name: str, stream_id: int) -> Stream | None:
        """The open stream that a frame is for; None for one that has ended, which the frame may have crossed."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            return stream
        if stream_id > self._highest_id or not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on an idle stream")
        self._count_control()
        if name == "DATA" and self._ended.get(stream_id):
            raise H2StreamError(ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
        return None

    def _count_control(self) -> None:
        if not self._control.allows():
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that move no data")

    def _is_open(self, stream: Stream) -> bool:
        return self.streams.get(stream.id) is stream

    def _count_memory(self, stream: Stream) -> None:
        now = stream.held + stream.partial + stream.queued
        if now != stream.counted:
            was_full = self.memory.full
            self.memory.add(now - stream.counted)
            stream.counted = now
            if was_full and not self.memory.full:
                self._grant_connection()

    def _grant(self, stream: Stream) -> None:
        increment = stream.receive_window.grant(stream.held)
        if increment:
            self.sender.control(frames.window_update(stream.id, increment))

    def _grant_connection(self) -> None:
        increment = self._window.grant(0)
        if increment:
            self.sender.control(frames.window_update(0, increment))

    def _half_close(self, stream: Stream) -> None:
        stream.remote_closed = True
        if stream.receiver is not None and self._is_open(stream):
            stream.receiver.half_closed()

    def _on_sent(self, stream: Stream) -> None:
        self._control.earn(_EARNED)
        if self._is_open(stream):
            if stream.local_closed:
                self._remove(stream)
            else:
                self._count_memory(stream)

    def _forget(self, stream: Stream) -> None:
        """The stream ended out of order."""
        self.sender.forget(stream)
        self._remove(stream)
        if stream.receiver is not None:
            stream.receiver.closed()

    def _remove(self, stream: Stream) -> None:
        del self.streams[stream.id]
        stream.held = stream.partial = 0
        self._count_memory(stream)
        self._remember(stream.id, by_peer=stream.remote_closed)

    def _remember(self, stream_id: int, *, by_peer: bool) -> None:
        self._ended[stream_id] = by_peer
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
