"""The other end of a connection in memory: raw frames out, frames back, and time that stands still."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hpack import Encoder

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.connection import Connection
from epp.extproc.transport.http2.errors import ErrorCode
from epp.extproc.transport.http2.frames import END_HEADERS, END_STREAM, Frame, FrameReader, FrameType
from epp.extproc.transport.http2.headers import RequestHead
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.memory import Memory
from epp.extproc.transport.http2.stream import Receiver, Stream

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/x"),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
HEAD = b"\x88"
END = b"\x00\x0bgrpc-status\x010"
PLENTY = 1 << 30


@dataclass
class Recorder:
    """A receiver that writes down what it is told."""

    stream: Stream
    head: RequestHead
    body: bytes = b""
    told: list[str] = field(default_factory=list)

    def data(self, payload: bytes) -> None:
        self.body += payload

    def half_closed(self) -> None:
        self.told.append("half_closed")

    def closed(self) -> None:
        self.told.append("closed")

    def writable(self) -> None:
        self.told.append("writable")


class Peer:
    """A client whose every byte the test chooses."""

    def __init__(self, limits: Limits | None = None, *, greet: bool = True, memory: Memory | None = None) -> None:
        self.now = 0.0
        self.memory = memory or Memory(PLENTY)
        self.received: list[Recorder] = []
        self.connection = Connection(limits or Limits(), self._accept, self.memory, lambda: self.now)
        self.encoder = Encoder()
        self._reader = FrameReader(1 << 24)
        if greet:
            self.send(frames.PREFACE, frames.settings({}), frames.frame(FrameType.SETTINGS, frames.ACK, 0))
            self.answers()

    def _accept(self, _connection: Connection, stream: Stream, head: RequestHead) -> Receiver:
        self.received.append(Recorder(stream, head))
        return self.received[-1]

    def send(self, *pieces: bytes) -> None:
        """Send bytes, all at once."""
        self.connection.receive(b"".join(pieces))

    def headers(self, stream_id: int, fields: Iterable[tuple[str, str]] = REQUEST, *, end: bool = False) -> bytes:
        """A HEADERS frame."""
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frames.frame(FrameType.HEADERS, flags, stream_id, self.encoder.encode(list(fields)))

    def open(self, stream_id: int = 1, *, end: bool = False) -> Recorder:
        """Open a stream with a whole request head."""
        self.send(self.headers(stream_id, end=end))
        return self.received[-1]

    def answers(self, room: int = PLENTY) -> list[Frame]:
        """The frames that the server sends now."""
        return list(self._reader.feed(b"".join(self.connection.sender.take(room))))

    def respond(self, stream: Stream, *pieces: bytes, end: bool = True) -> None:
        """What a call does: headers, body, trailers."""
        stream.send_headers(HEAD)
        for piece in pieces:
            stream.send(piece)
        if end:
            stream.end(END)
        self.connection.sender.schedule(stream)


def data(stream_id: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    """A DATA frame."""
    return frames.frame(FrameType.DATA, END_STREAM if end else 0, stream_id, payload)


def kinds(answers: list[Frame]) -> list[str]:
    """The frame types by name."""
    return [FrameType(kind).name for kind, _, _, _ in answers]


def goaway_code(answers: list[Frame]) -> ErrorCode | None:
    """The error of the last GOAWAY, if there is one."""
    codes = [ErrorCode(int.from_bytes(payload[4:8], "big")) for kind, _, _, payload in answers if kind == 7]
    return codes[-1] if codes else None


def reset_codes(answers: list[Frame]) -> list[tuple[int, ErrorCode]]:
    """The streams that were reset, and why."""
    return [(sid, ErrorCode(int.from_bytes(payload, "big"))) for kind, _, sid, payload in answers if kind == 3]


def body_of(answers: list[Frame], stream_id: int) -> bytes:
    """The DATA of a stream."""
    return b"".join(payload for kind, _, sid, payload in answers if kind == 0 and sid == stream_id)


def windows_of(answers: list[Frame], stream_id: int) -> int:
    """What the server granted on a stream (0: the connection)."""
    return sum(int.from_bytes(payload, "big") for kind, _, sid, payload in answers if kind == 8 and sid == stream_id)
