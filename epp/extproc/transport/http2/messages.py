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

    __slots__ = ("_max_bytes", "_need", "partial")

    def __init__(self, max_bytes: int) -> None:
        self.partial: bytes | bytearray = b""
        """What has come of a message that is not whole yet."""
        self._max_bytes = max_bytes
        self._need = PREFIX_SIZE

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. Raises GrpcError for one that is too long or compressed."""
        if self.partial:
            self.partial += data
            if len(self.partial) < self._need:
                return []
            data, self.partial = bytes(self.partial), b""
        messages: list[bytes] = []
        start, end = 0, len(data)
        self._need = PREFIX_SIZE
        while end - start >= PREFIX_SIZE:
            compressed, size = _PREFIX.unpack_from(data, start)
            if compressed or size > self._max_bytes:
                raise self._refusal(size, compressed=compressed)
            after = start + PREFIX_SIZE + size
            if after > end:
                self._need = after - start
                break
            messages.append(data[start + PREFIX_SIZE : after])
            start = after
        if start < end:
            self.partial = bytearray(data[start:])
        return messages

    def _refusal(self, size: int, *, compressed: int) -> GrpcError:
        if compressed:
            return GrpcError(Status.INTERNAL, "compressed message without grpc-encoding")
        return GrpcError(Status.RESOURCE_EXHAUSTED, f"message of {size} bytes, {self._max_bytes} are allowed")
