"""One connection on its socket: writes bundled per turn of the loop, and patience that ends."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from epp.extproc.transport.http2.connection import Accept, Connection
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.memory import Memory
from epp.extproc.transport.http2.metrics import Http2Metrics

_HIGH_WATER = 512 * 1024
"""Bytes in the socket's buffer above which bodies wait where they are counted."""
_CLOSE_SECONDS = 3.0
"""Time that a peer has to close its half after we have closed ours."""
_DRAIN_NOTICE_SECONDS = 1.0
"""Time after the first GOAWAY in which a peer may still open streams, if it does not say that it has heard."""


class Owner(Protocol):
    """Who keeps the links."""

    metrics: Http2Metrics

    def opened(self, link: "Link") -> bool:
        """A connection came; False: it is one too many."""

    def closed(self, link: "Link") -> None:
        """It has gone."""


class Link(asyncio.Protocol):
    """asyncio's side of one connection."""

    def __init__(self, owner: Owner, accept: Callable[["Link"], Accept], limits: Limits, memory: Memory) -> None:
        self._loop = asyncio.get_running_loop()
        self.connection = Connection(limits, accept(self), memory, self._loop.time)
        self._owner = owner
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._flush_scheduled = False
        self._blocked_since: float | None = None
        self._unread_control = 0
        now = self._loop.time()
        self._begun_at = self._heard_at = self._busy_at = now
        self._pinged = False
        self._draining_since: float | None = None
        self._closing_since: float | None = None

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.opened(self) or not _speaks_http2(self._transport):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.wake()

    def data_received(self, data: bytes) -> None:
        if self._closing_since is not None:
            return
        self._heard_at = self._loop.time()
        self._pinged = False
        self.connection.receive(data)
        self.wake()

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()
        self._unread_control = 0

    def resume_writing(self) -> None:
        self._blocked_since = None
        self.wake()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.connection.abandon()
        self._owner.closed(self)

    # --- For the owner

    def wake(self) -> None:
        """Send what is queued at the end of this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def names_of_peer(self) -> frozenset[str]:
        """The alternative names of the peer's certificate, in lower case."""
        found = self._transport.get_extra_info("peercert") if self._transport is not None else None
        return frozenset(name.lower() for _, name in (found or {}).get("subjectAltName", ()))

    def drain(self) -> None:
        """Ask the peer to go elsewhere; what runs may finish."""
        if self._draining_since is None:
            self._draining_since = self._loop.time()
            self.connection.drain()
            self.wake()

    def abort(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def check(self) -> None:
        """End what has lasted too long; called about once a second."""
        now, limits, connection = self._loop.time(), self._limits, self.connection
        if connection.streams:
            self._busy_at = now
        if not connection.ready and now - self._begun_at > limits.handshake_seconds:
            connection.fail(H2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no preface and SETTINGS in time"))
        if now - self._busy_at > limits.idle_seconds or 0 < limits.age_seconds < now - self._begun_at:
            self.drain()
        if self._draining_since is not None and now - self._draining_since > _DRAIN_NOTICE_SECONDS:
            connection.finish_drain()
        connection.tend(stalled_since=now - limits.stall_seconds)
        if self._is_dead(now):
            self._owner.metrics.abandoned()
            self.abort()
            return
        self.wake()

    def _is_dead(self, now: float) -> bool:
        """Whether there is nobody at the other end, or one who takes nothing. Pings it when in doubt."""
        silent = now - self._heard_at
        if silent > self._limits.keepalive_seconds and not self._pinged:
            self._pinged = True
            self.connection.ping()
        return (
            silent > 2 * self._limits.keepalive_seconds
            or (self._blocked_since is not None and now - self._blocked_since > self._limits.stall_seconds)
            or (self._closing_since is not None and now - self._closing_since > _CLOSE_SECONDS)
        )

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport, connection = self._transport, self.connection
        if transport is None or transport.is_closing():
            return
        blocked = self._blocked_since is not None
        chunks = connection.sender.take(0 if blocked else _HIGH_WATER)
        if chunks:
            data = b"".join(chunks)
            transport.write(data)
            if blocked:
                self._unread_control += len(data)
                if self._unread_control > self._limits.unread_control_bytes:
                    transport.abort()
                    return
        if connection.over:
            self._end(transport)
        elif connection.sender.waits and self._blocked_since is None:
            self.wake()

    def _end(self, transport: asyncio.Transport) -> None:
        """Close our half and let the peer close its own.

        What the peer has sent meanwhile is read and dropped: bytes that lie unread at a close become a TCP reset, which
        can take the last frames from the peer before it reads them (RFC 9112 section 9.6 tells the same of HTTP/1.1).
        """
        if self._closing_since is not None:
            return
        self._closing_since = self._loop.time()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()


def _speaks_http2(transport: asyncio.Transport) -> bool:
    """Whether TLS, where there is any, agreed on HTTP/2 or on nothing; some gateways offer no list."""
    tls = transport.get_extra_info("ssl_object")
    return tls is None or tls.selected_alpn_protocol() in ("h2", None)
