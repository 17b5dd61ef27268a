"""The streams of one connection by their state (RFC 9113 5.1): open, ended, or idle above the highest id."""

from collections import OrderedDict

from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.flood import RateLimit
from epp.extproc.transport.http2.stream import Stream

_REMEMBERED = 1024
"""Ended streams remembered, to tell a peer's mistakes from frames that crossed ours."""


class StreamTable:
    """Open streams by id, and how the last ones ended. Frames for ended streams count as `flood`."""

    def __init__(self, flood: RateLimit) -> None:
        self.open: dict[int, Stream] = {}
        self.highest_id = 0
        """The highest id that the peer has used."""
        self._ended: OrderedDict[int, bool] = OrderedDict()
        self._flood = flood

    def holds(self, stream: Stream) -> bool:
        """Whether the stream is open."""
        return self.open.get(stream.id) is stream

    def find(self, frame: str, stream_id: int) -> Stream | None:
        """The open stream that a frame is for; None for one that has ended, which the frame may have crossed.

        Raises H2ConnectionError for a stream that was never opened.
        """
        stream = self.open.get(stream_id)
        if stream is None:
            self._check_ended(frame, stream_id)
        return stream

    def _check_ended(self, frame: str, stream_id: int) -> None:
        if stream_id > self.highest_id or not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{frame} on an idle stream")
        self._flood.count()
        if frame == "DATA" and self._ended.get(stream_id):
            raise H2StreamError(ErrorCode.STREAM_CLOSED, "DATA on a closed stream")

    def check_late_block(self, stream_id: int) -> None:
        """A header block for a stream that is not open: trailers that crossed our end of it, or a mistake."""
        self._flood.count()
        by_peer = self._ended.get(stream_id)
        if by_peer is None:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "stream id lower than one before")
        if by_peer:
            raise H2ConnectionError(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")

    def remove(self, stream: Stream) -> None:
        """The stream has ended."""
        del self.open[stream.id]
        self.remember(stream.id, by_peer=stream.remote_closed)

    def remember(self, stream_id: int, *, by_peer: bool) -> None:
        """A stream has ended, `by_peer`: the peer can send no more on it by its own doing."""
        self._ended[stream_id] = by_peer
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
