"""Asks one worker for a sign of life, on a connection that is kept for as long as the worker keeps it."""

import asyncio
from collections.abc import Callable
from typing import cast

from epp.endpoints.endpoint import Endpoint


class Pulse:
    """At most one open question; `told` hears True for any reaction, False where nobody accepts the connection.

    Any process that runs reacts, whatever it speaks and whatever it thinks of the question: by an answer, by a TLS
    alert, by closing. A process that hangs or a node that is gone does not, and then `told` hears nothing.
    """

    def __init__(self, endpoint: Endpoint, told: Callable[[bool], None]) -> None:
        self.asked_at: float | None = None
        """When the open question was asked; None: none is open."""
        self._endpoint = endpoint
        self._question = f"GET /health HTTP/1.1\r\nHost: {endpoint.host_port}\r\n\r\n".encode()
        self._told = told
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None

    def ask(self, now: float) -> None:
        """Ask; no question may be open."""
        self.asked_at = now
        if self._connection is not None and self._connection.open:
            self._connection.write(self._question)
        else:
            self._connect()

    def close(self) -> None:
        """Give up the open question, if any, and the connection."""
        self.asked_at = None
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()
        self._connecting = self._connection = None

    def heard(self, connection: "_Connection") -> None:
        """The worker said something."""
        if connection is self._connection:
            self._answer(alive=True)

    def lost(self, connection: "_Connection") -> None:
        """A fresh connection was closed by a process that runs; a kept one says nothing, so ask on another."""
        if connection is not self._connection:
            return
        self._connection = None
        if self.asked_at is not None and connection.kept:
            self._connect()
        else:
            self._answer(alive=True)

    def _connect(self) -> None:
        self._connecting = asyncio.create_task(self._open(), name="sign of life")

    async def _open(self) -> None:
        connection = self._connection = _Connection(self)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, self._endpoint.address, self._endpoint.port)
        except OSError:
            self._answer(alive=False)
            return
        connection.write(self._question)

    def _answer(self, *, alive: bool) -> None:
        if self.asked_at is not None:
            self.asked_at = None
            self._told(alive)


class _Connection(asyncio.Protocol):
    """Tells of bytes and of the end, nothing else."""

    def __init__(self, pulse: Pulse) -> None:
        self.kept = False
        """Whether something was answered on it."""
        self._pulse = pulse
        self._transport: asyncio.Transport | None = None

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, question: bytes) -> None:
        if self._transport is not None:
            self._transport.write(question)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP transport by construction, though uvloop's does not inherit from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - whatever it says
        self.kept = True
        self._pulse.heard(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it ended
        self._pulse.lost(self)
