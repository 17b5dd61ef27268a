"""gRPC's length-prefixed messages."""

import struct

from epp.extproc.transport.http2.status import GrpcError, Status

_PREFIX = struct.Struct(">BI")
PREFIX_SIZE = _PREFIX.size


def prefix(size: int) -> bytes:
    """The five bytes before an uncompressed message of `size` bytes."""
    return _PREFIX.pack(0, size)


class MessageReader:
    """Puts messages together from the pieces in which DATA frames bring them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()
        self._need = PREFIX_SIZE

    @property
    def partial(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. Raises GrpcError for one that is too long or compressed."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._need:
                return []
            data = bytes(self._partial)
            self._partial.clear()
        messages: list[bytes] = []
        start, end = 0, len(data)
        self._need = PREFIX_SIZE
        while end - start >= PREFIX_SIZE:
            after = start + PREFIX_SIZE + self._size_at(data, start)
            if after > end:
                self._need = after - start
                break
            messages.append(data[start + PREFIX_SIZE : after])
            start = after
        if start < end:
            self._partial += data[start:]
        return messages

    def _size_at(self, data: bytes, at: int) -> int:
        compressed, size = _PREFIX.unpack_from(data, at)
        if compressed:
            raise GrpcError(Status.INTERNAL, "compressed message without grpc-encoding")
        if size > self._max_bytes:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, f"message of {size} bytes, {self._max_bytes} are allowed")
        number: int = size
        return number
