"""What a carrier gives the servicer: one ext_proc stream as serialised messages both ways."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

_SMALLEST_MESSAGE_LIMIT = 64 * 1024 * 1024


def max_message_bytes(max_body_bytes: int) -> int:
    """The size of messages that every carrier takes: some gateways send a whole body in one."""
    return max(_SMALLEST_MESSAGE_LIMIT, 2 * max_body_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierStatus:
    """The section of /status about the carrier; None: it does not tell."""

    name: str
    connections: int | None = None
    """Open now."""
    open_streams: int | None = None
    """Open now, on all connections."""
    buffered_bytes: int | None = None
    """Messages half received or not read, and answers that gateways have not taken."""


class StreamGoneError(Exception):
    """The gateway has left: nothing can be sent or received any more."""


class Stream(Protocol):
    """One stream. A gateway that resets it cancels the task that serves it."""

    async def read(self) -> bytes | None:
        """The next message; None: the gateway will send no more (half-close).

        Raises StreamGoneError when the stream broke.
        """

    async def write(self, message: bytes) -> None:
        """Send one message, waiting while the gateway cannot take it.

        Raises StreamGoneError when the stream broke.
        """


Serve = Callable[[Stream], Awaitable[None]]
"""Serves one stream to its end; raises ProtocolError when the gateway sends what is no ext_proc message."""
