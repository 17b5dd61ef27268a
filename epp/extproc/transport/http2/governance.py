"""Frames that carry nothing: SETTINGS, PING, PRIORITY, WINDOW_UPDATE and those of unknown types."""

from collections.abc import Callable

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.flood import RateLimit
from epp.extproc.transport.http2.frames import FrameType
from epp.extproc.transport.http2.sender import Sender
from epp.extproc.transport.http2.table import StreamTable

_PING_SIZE = 8
_PRIORITY_SIZE = 5
_DRAIN_PING = b"epp-gone"
_ALIVE_PING = b"epp-ping"


class Governance:
    """How the peer governs what is sent. Each of these frames counts as `flood`; `heard` hears that a drain arrived."""

    def __init__(self, table: StreamTable, sender: Sender, flood: RateLimit, heard: Callable[[], None]) -> None:
        self.greeted = False
        """Whether the peer's SETTINGS have come."""
        self.acknowledged = False
        """Whether the peer has taken ours."""
        self._table = table
        self._sender = sender
        self._flood = flood
        self._heard = heard

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._sender.control(frames.frame(FrameType.PING, 0, 0, _ALIVE_PING))

    def ping_drain(self) -> None:
        """Ask the peer to say that it has heard of the drain."""
        self._sender.control(frames.frame(FrameType.PING, 0, 0, _DRAIN_PING))

    def on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A SETTINGS frame, of the peer's wishes or taking note of ours."""
        self._flood.count()
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if not flags & frames.ACK:
            self._apply(payload)
        elif payload:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
        else:
            self.acknowledged = True

    def _apply(self, payload: bytes) -> None:
        peer = self._sender.peer
        before = peer.initial_window
        peer.apply(payload)
        self.greeted = True
        self._sender.control(frames.frame(FrameType.SETTINGS, frames.ACK, 0))
        if peer.initial_window != before:
            self._widen_all(peer.initial_window - before)

    def _widen_all(self, change: int) -> None:
        try:
            for stream in self._table.open.values():
                self._sender.widen_stream(stream, change)
        except H2StreamError as error:
            raise H2ConnectionError(error.code, error.reason) from None

    def on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A PING frame: the same goes back, or one of ours has come back."""
        self._flood.count()
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_SIZE:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        if not flags & frames.ACK:
            self._sender.control(frames.frame(FrameType.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING:
            self._heard()

    def on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """A WINDOW_UPDATE frame."""
        increment = frames.word_in(payload, "WINDOW_UPDATE") & frames.MAX_WINDOW
        self._flood.count()
        if stream_id == 0:
            if increment == 0:
                raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._sender.widen(increment)
            return
        stream = self._table.find("WINDOW_UPDATE", stream_id)
        if increment == 0:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        if stream is not None:
            self._sender.widen_stream(stream, increment)

    def on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """A PRIORITY frame, whose wishes mean nothing here."""
        self._flood.count()
        if stream_id == 0:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != _PRIORITY_SIZE:
            raise H2StreamError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if frames.depends_on(payload) == stream_id:
            raise H2StreamError(ErrorCode.PROTOCOL_ERROR, "stream that depends on itself")

    def on_unknown(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        """A frame of a type that RFC 9113 does not define."""
        self._flood.count()
