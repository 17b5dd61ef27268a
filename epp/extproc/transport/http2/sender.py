"""What leaves a connection: control frames at once, bodies as far as the peer's windows and the socket allow."""

from collections import deque
from collections.abc import Callable

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.flood import RateLimit
from epp.extproc.transport.http2.peer import PeerSettings
from epp.extproc.transport.http2.stream import Stream

_DEFAULT_WINDOW = 65_535
_QUANTUM = 65_536
"""Body bytes that one stream sends before the next has its turn."""
_EARNED = 4
"""Control frames that the peer may send for each time we sent on a stream: window updates, a reset, a ping."""


class Sender:
    """The sending half of one connection.

    `sent` hears of each stream whose last frame has left, or of which something still waits; `flood` of all sends.
    """

    def __init__(
        self, *, room_below: int, sent: Callable[[Stream], None], flood: RateLimit, clock: Callable[[], float]
    ) -> None:
        self.peer = PeerSettings()
        self.stalled: dict[Stream, float] = {}
        """Streams whose answers wait for the peer, since when."""
        self._room_below = room_below
        self._sent = sent
        self._flood = flood
        self._clock = clock
        self._window = _DEFAULT_WINDOW
        self._out: list[bytes | memoryview] = []
        self._ready: deque[Stream] = deque()
        self._blocked: deque[Stream] = deque()

    @property
    def waits(self) -> bool:
        """Whether `take` would give anything."""
        return bool(self._out or self._ready)

    def control(self, frame: bytes) -> None:
        """Send a frame that no window governs."""
        self._out.append(frame)

    def schedule(self, stream: Stream) -> None:
        """The stream has something to send."""
        if not stream.scheduled:
            stream.scheduled = True
            self._ready.append(stream)

    def take(self, room: int) -> list[bytes | memoryview]:
        """All control frames, and bodies until `room` bytes are used up or nothing more may be sent."""
        out, turns = self._out, 0
        while self._ready and room > 0:
            stream = self._ready.popleft()
            before = stream.queued
            sent = stream.emit(out, window=min(self._window, _QUANTUM), frame_size=self.peer.max_frame_size)
            self._window -= sent
            room -= sent
            turns += 1
            if stream.waits:
                self._keep(stream, progress=sent > 0)
            else:
                stream.scheduled = False
                if self.stalled:
                    self.stalled.pop(stream, None)
            if stream.wants_room and stream.queued < self._room_below <= before + self._room_below:
                self._tell_room(stream)
            if stream.local_closed or stream.queued or stream.counted:
                self._sent(stream)
        if turns:
            self._flood.earn(_EARNED * turns)
        self._out = []
        return out

    def _keep(self, stream: Stream, *, progress: bool) -> None:
        """The stream has more than it may send now: its own window, or the connection's, or its turn is over."""
        if progress or stream not in self.stalled:
            self.stalled[stream] = self._clock()
        if stream.send_window <= 0:
            stream.scheduled = False
        elif self._window <= 0:
            self._blocked.append(stream)
        else:
            self._ready.append(stream)

    @staticmethod
    def _tell_room(stream: Stream) -> None:
        stream.wants_room = False
        if stream.receiver is not None:
            stream.receiver.writable()

    def forget(self, stream: Stream) -> None:
        """The stream is gone."""
        stream.forget()
        self.stalled.pop(stream, None)

    def widen(self, increment: int) -> None:
        """The peer takes more on the connection. Raises H2ConnectionError when it says more than a window can be."""
        self._window += increment
        if self._window > frames.MAX_WINDOW:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "connection window above 2^31-1")
        self._ready.extend(self._blocked)
        self._blocked.clear()

    def widen_stream(self, stream: Stream, increment: int) -> None:
        """The peer takes more on the stream. Raises H2StreamError when it says more than a window can be."""
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW:
            raise H2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "stream window above 2^31-1")
        if stream.waits and stream.send_window > 0:
            self.schedule(stream)
