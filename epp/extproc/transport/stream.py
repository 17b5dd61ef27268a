"""What a carrier gives the servicer: one ext_proc stream as serialised messages both ways."""

from typing import Protocol


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
