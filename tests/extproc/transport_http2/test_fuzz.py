"""Random peers: arbitrary bytes, arbitrary frames, and legal conversations that the `h2` library speaks too."""

from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, StreamEnded, StreamReset, TrailersReceived
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.frames import FrameType
from epp.extproc.transport.http2.limits import Limits

from .peer import REQUEST, Peer, Recorder, kinds

GREETING = (frames.PREFACE, frames.settings({}), frames.frame(FrameType.SETTINGS, frames.ACK, 0))
TIGHT = Limits(
    streams=3,
    stream_window=65_535,
    connection_window=70_000,
    connection_buffer_bytes=200_000,
    control_frames_per_second=50,
    early_resets_per_second=20,
)

any_frame = st.builds(
    frames.frame,
    st.sampled_from(list(FrameType)),
    st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 4, 5, 8, 9])),
    st.integers(0, 6),
    st.one_of(st.binary(max_size=20), st.binary(min_size=4, max_size=8), st.just(Peer().headers(1)[9:])),
)


@given(st.lists(st.one_of(any_frame, st.binary(max_size=30)), max_size=30), st.booleans())
@settings(max_examples=300)
def test_whatever_comes_no_exception_escapes_and_nothing_is_kept(pieces, greeted):
    peer = Peer(TIGHT, greet=greeted)
    for piece in pieces:
        peer.send(piece)
        if peer.connection.fault is None:
            assert len(peer.connection.streams) <= TIGHT.streams
            for stream in list(peer.connection.streams.values()):
                if stream.id % 4 == 1 and not stream.waits:
                    peer.respond(stream, b"x")
        kinds(peer.answers())
    if peer.connection.fault is not None:
        assert not peer.connection.streams
    peer.connection.abandon()
    assert peer.memory.used == 0
    closed = [call.told.count("closed") for call in peer.received]
    assert all(count <= 1 for count in closed)


@dataclass
class Exchange:
    """What both ends should agree on for one stream."""

    call: Recorder
    sent: bytes = b""
    answered: bytes = b""
    got: bytes = b""
    ended: bool = False
    events: list[str] = field(default_factory=list)


class Conversation(RuleBasedStateMachine):
    """The h2 library as the client: whatever is legal for it must be understood, and answered in a way it accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer(TIGHT, greet=False)
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.client.initiate_connection()
        self.open: dict[int, Exchange] = {}
        self.reset: set[int] = set()
        self.exchange_bytes()

    def exchange_bytes(self, cut: int = 0) -> None:
        """Carry bytes both ways until both are quiet."""
        while True:
            out = self.client.data_to_send()
            self.peer.send(out[:cut])
            self.peer.send(out[cut:])
            back = b"".join(self.peer.connection.sender.take(1 << 30))
            if not out and not back:
                return
            for event in self.client.receive_data(back):
                self.note(event)

    def note(self, event: Event) -> None:
        exchange = self.open.get(getattr(event, "stream_id", None) or 0)
        if exchange is None:
            return
        if isinstance(event, DataReceived):
            exchange.got += event.data
            self.client.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        elif isinstance(event, TrailersReceived):
            assert (b"grpc-status", b"0") in event.headers
        elif isinstance(event, StreamEnded | StreamReset):
            exchange.ended = True

    def ids(self) -> list[int]:
        return sorted(number for number, exchange in self.open.items() if not exchange.ended)

    @precondition(lambda self: len(self.ids()) < TIGHT.streams)
    @rule(cut=st.integers(0, 200))
    def begin(self, cut: int) -> None:
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, list(REQUEST))
        self.exchange_bytes(cut)
        self.open[number] = Exchange(self.peer.received[-1])
        assert self.peer.received[-1].stream.id == number

    @precondition(lambda self: self.ids())
    @rule(which=st.integers(0, 9), size=st.integers(0, 40_000), pad=st.integers(0, 255), cut=st.integers(0, 20_000))
    def talk(self, which: int, size: int, pad: int, cut: int) -> None:
        number = self.ids()[which % len(self.ids())]
        exchange = self.open[number]
        if exchange.call.stream.remote_closed:
            return
        room = min(
            self.client.local_flow_control_window(number) - pad - 1, self.client.max_outbound_frame_size - pad - 1
        )
        body = bytes((which,)) * max(0, min(size, room))
        self.client.send_data(number, body, pad_length=pad)
        exchange.sent += body
        self.exchange_bytes(cut)

    @precondition(lambda self: self.ids())
    @rule(which=st.integers(0, 9))
    def half_close(self, which: int) -> None:
        number = self.ids()[which % len(self.ids())]
        if not self.open[number].call.stream.remote_closed:
            self.client.end_stream(number)
            self.exchange_bytes()
            assert self.open[number].call.told[-1] == "half_closed"

    @precondition(lambda self: self.ids())
    @rule(which=st.integers(0, 9), size=st.integers(0, 200_000), end=st.booleans())
    def answer(self, which: int, size: int, end: bool) -> None:
        number = self.ids()[which % len(self.ids())]
        exchange = self.open[number]
        body = bytes((which + 100,)) * size
        if not exchange.answered and not exchange.events:
            exchange.call.stream.send_headers(b"\x88")
            exchange.events.append("headers")
        exchange.call.stream.send(body)
        exchange.answered += body
        if end:
            exchange.call.stream.end(b"\x00\x0bgrpc-status\x010")
        self.peer.connection.sender.schedule(exchange.call.stream)
        self.exchange_bytes()
        assert exchange.ended == end

    @precondition(lambda self: self.ids())
    @rule(which=st.integers(0, 9))
    def leave(self, which: int) -> None:
        number = self.ids()[which % len(self.ids())]
        self.client.reset_stream(number)
        self.exchange_bytes()
        assert self.open.pop(number).call.told[-1] == "closed"

    @rule(window=st.integers(0, 100_000), frame=st.integers(16_384, 100_000))
    def change_settings(self, window: int, frame: int) -> None:
        if not self.ids():
            self.client.update_settings({4: max(window, 65_535), 5: frame})
            self.exchange_bytes()

    @rule()
    def ping(self) -> None:
        self.client.ping(b"12345678")
        self.exchange_bytes()

    @invariant()
    def both_agree(self) -> None:
        assert self.peer.connection.fault is None
        for exchange in self.open.values():
            assert exchange.call.body == exchange.sent
            assert exchange.got == exchange.answered
        assert len(self.peer.connection.streams) == len(self.ids())
        assert self.peer.memory.used == 0


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck))
