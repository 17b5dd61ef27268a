"""A small HTTP/1.1 client for metrics pages: one kept connection, one GET at a time, few copies."""

import asyncio
from collections.abc import Callable
from typing import cast

MAX_PAGE_BYTES = 4 * 1024 * 1024
_CHUNKS, _UNTIL_CLOSED = -1, -2


class PageConnection(asyncio.Protocol):
    """Asks for one page again and again; tells each answer once, as a page or as what went wrong."""

    def __init__(self, path: str, host: str, told: Callable[[bytes | None, str], None]) -> None:
        self._request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n".encode()
        self._told = told
        self._transport: asyncio.Transport | None = None
        self._waiting = False
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._needed = 0
        self._head: bytes | None = None

    @property
    def open(self) -> bool:
        """Whether a page can be asked for."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting(self) -> bool:
        """Whether an answer is under way."""
        return self._waiting

    def ask(self) -> None:
        """Ask for the page; the connection must be open and not waiting."""
        assert self._transport is not None
        self._waiting = True
        self._parts.clear()
        self._size, self._needed, self._head = 0, 0, None
        self._transport.write(self._request)

    def close(self, why: str = "closed") -> None:
        """Give the connection up; an answer that is under way has failed."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to ask."""
        # A TCP transport by construction, though uvloop's does not inherit from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine closed; an answer without a stated length ends here."""
        if self._waiting and self._head is not None and self._needed == _UNTIL_CLOSED:
            self._finish()
        self._fail(str(exc) if exc else "the engine closed the connection")

    def data_received(self, data: bytes) -> None:
        """Collect the answer until it is whole."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_PAGE_BYTES:
            self.close(f"the page is larger than {MAX_PAGE_BYTES} bytes")
        elif self._waiting and (self._head is not None or self._read_head()) and self._whole():
            self._finish()

    def _whole(self) -> bool:
        if self._needed == _CHUNKS:
            end = b"".join(self._parts[-5:])
            return end == b"0\r\n\r\n" or end.endswith(b"\r\n0\r\n\r\n")
        return self._needed != _UNTIL_CLOSED and self._size >= self._needed

    def _read_head(self) -> bool:
        """Whether the head is whole; then it says how long the answer is."""
        first = self._parts[0]
        together = first if isinstance(first, bytes) and len(self._parts) == 1 else b"".join(self._parts)
        end = together.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head = together[:end]
        length = _header(self._head, b"content-length")
        unknown = _CHUNKS if _chunked(self._head) else _UNTIL_CLOSED
        self._needed = int(length) if length.isdigit() else unknown
        self._parts[:] = [memoryview(together)[end + 4 :]]
        self._size = len(self._parts[0])
        return True

    def _finish(self) -> None:
        assert self._head is not None
        status = self._head[9:12]
        body = b"".join(self._parts)
        if _chunked(self._head):
            body = _unchunk(body)
        self._waiting = False
        if status == b"200":
            self._told(body, "")
        else:
            self._told(None, f"HTTP {status.decode(errors='replace')}")
        if _header(self._head, b"connection") == b"close" and self._transport is not None:
            self._transport.close()

    def _fail(self, why: str) -> None:
        if self._waiting:
            self._waiting = False
            self._told(None, why)


def _chunked(head: bytes) -> bool:
    return b"chunked" in _header(head, b"transfer-encoding")


def _header(head: bytes, name: bytes) -> bytes:
    """The lower-cased value of one header; empty when it is absent."""
    lower = head.lower()
    start = lower.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    end = lower.find(b"\r\n", start)
    return lower[start : len(lower) if end < 0 else end].strip()


def _unchunk(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at)
        try:
            size = int(body[at:end].split(b";", 1)[0], 16) if end >= 0 else 0
        except ValueError:
            size = 0
        if size <= 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size
