"""Every bound of the transport, in one place."""

from dataclasses import dataclass

from epp.extproc.transport.stream import max_message_bytes
from epp.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may use. Beyond it the stream or the connection ends; nobody else notices."""

    connections: int = 4096
    """Open connections in all."""
    streams: int = 20_000
    """Open streams per connection, announced to the peer."""
    header_bytes: int = 65_536
    """Size of a header list by RFC 9113 6.5.2, announced; a stream above it is refused."""
    message_bytes: int = 64 * 1024 * 1024
    """Bytes of one gRPC message."""
    stream_window: int = 1024 * 1024
    """Bytes that a peer may send on a stream ahead of what is read."""
    connection_window: int = 16 * 1024 * 1024
    """The same for all streams of a connection."""
    stream_send_bytes: int = 256 * 1024
    """Answers that wait for the peer's window, per stream, before the exchange waits too."""
    connection_buffer_bytes: int = 128 * 1024 * 1024
    """Bytes buffered for one connection, both ways, before its window stays shut and growing messages are refused."""
    buffer_bytes: int = 1024 * 1024 * 1024
    """The same for all connections."""
    control_frames_per_second: int = 2_000
    """Frames that move no data: SETTINGS, PING, PRIORITY, empty DATA, unknown types and the like."""
    early_resets_per_second: int = 1_000
    """Streams that the peer resets before any answer."""
    unread_control_bytes: int = 1024 * 1024
    """Answers to control frames that the peer leaves unread."""
    handshake_seconds: float = 10.0
    """Time for TLS, the preface and the SETTINGS exchange."""
    idle_seconds: float = 3600.0
    """Time without a stream after which a connection is closed, in good order."""
    age_seconds: float = 0.0
    """Age at which a connection is asked to end, its streams unharmed; 0: never."""
    keepalive_seconds: float = 60.0
    """Silence after which the peer is pinged; as long again without a word, and it is gone."""
    stall_seconds: float = 300.0
    """Time that answers wait for a peer that takes none, or a message takes to come, before the stream is reset."""

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        """The limits that the settings name."""
        return cls(
            connections=settings.max_connections,
            streams=settings.max_connection_streams,
            header_bytes=settings.http2_header_bytes,
            message_bytes=max_message_bytes(settings.max_body_bytes),
            stream_window=settings.http2_stream_window_bytes,
            connection_window=settings.http2_connection_window_bytes,
            connection_buffer_bytes=settings.http2_connection_buffer_bytes,
            buffer_bytes=settings.http2_buffer_bytes,
            control_frames_per_second=settings.http2_control_frames_per_second,
            early_resets_per_second=settings.http2_early_resets_per_second,
            handshake_seconds=settings.http2_handshake_seconds,
            idle_seconds=settings.http2_idle_seconds,
            age_seconds=settings.max_connection_age_seconds,
            keepalive_seconds=settings.keepalive_seconds,
            stall_seconds=settings.http2_stall_seconds,
        )

    @property
    def control_burst(self) -> int:
        """Control frames at once: every stream may close and every window move in one turn."""
        return 2 * self.streams + self.control_frames_per_second

    @property
    def reset_burst(self) -> int:
        """Early resets at once: a gateway may lose all its clients in one turn, and again."""
        return 2 * self.streams + self.early_resets_per_second
