"""Header blocks put together from HEADERS and CONTINUATION frames (RFC 9113 4.3)."""

from dataclasses import dataclass

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError

_PRIORITY_SIZE = 5
_CONTINUATIONS = 32


@dataclass(slots=True)
class HeaderBlock:
    """One header block, whole or on its way."""

    stream_id: int
    ends: bool
    self_dependent: bool
    fragment: bytes
    continuations: int = 0


class HeaderBlocks:
    """The blocks of one connection. Nothing may come between the frames of a block."""

    def __init__(self, max_bytes: int) -> None:
        self.unfinished: HeaderBlock | None = None
        self._max_bytes = max_bytes

    def begin(self, flags: int, stream_id: int, payload: bytes) -> HeaderBlock | None:
        """A HEADERS frame; the block when it is whole. Raises H2ConnectionError."""
        fragment = frames.without_padding(payload, flags)
        self_dependent = False
        if flags & frames.PRIORITY:
            self_dependent = frames.depends_on(fragment) == stream_id
            fragment = fragment[_PRIORITY_SIZE:]
        block = HeaderBlock(stream_id, bool(flags & frames.END_STREAM), self_dependent, fragment)
        if flags & frames.END_HEADERS:
            return block
        self.unfinished = block
        return None

    def add(self, flags: int, payload: bytes) -> HeaderBlock | None:
        """A CONTINUATION frame; the block when it is whole. Raises H2ConnectionError."""
        block = self.unfinished
        if block is None:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        block.fragment += payload
        block.continuations += 1
        if block.continuations > _CONTINUATIONS or len(block.fragment) > self._max_bytes:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header block without end")
        if not flags & frames.END_HEADERS:
            return None
        self.unfinished = None
        return block
