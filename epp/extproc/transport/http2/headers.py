"""Header blocks: HPACK (RFC 7541) and the rules for requests (RFC 9113 8.2 and 8.3)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError

Field = tuple[bytes, bytes]

_HARD_FACTOR = 4
"""A list this many times above the announced size ends the connection: it cannot even be decoded and refused."""
_REMEMBERED = 64
_ENTRY_OVERHEAD = 32
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]$")
_CONNECTION_SPECIFIC = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
_REQUEST_PSEUDO = (b":method", b":scheme", b":authority", b":path")
_SIZE_UPDATE_MASK, _SIZE_UPDATE = 0xE0, 0x20


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A valid request's pseudo-headers and fields."""

    method: bytes
    path: bytes
    fields: dict[bytes, bytes]
    """By name; repeated ones joined by commas."""
    content_length: int | None = None


class HeaderDecoder:
    """The HPACK state of one connection, and the request heads it has decoded lately.

    Gateways repeat the same metadata on every stream, so the same block comes again and again; while the dynamic table
    stays as it is, the same block has the same meaning.
    """

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._table = _WatchedTable()
        self._decoder = Decoder(max_list_bytes * _HARD_FACTOR)
        self._decoder.header_table = self._table
        self._heads: dict[bytes, RequestHead] = {}
        self._heads_at = 0

    def request(self, block: bytes) -> RequestHead:
        """The head of a request.

        Raises H2ConnectionError when the block cannot be decoded, H2StreamError when the request is malformed.
        """
        if self._heads_at == self._table.changes:
            known = self._heads.get(block)
            if known is not None:
                return known
        head = request_head(self._decode(block))
        if self._heads_at != self._table.changes or len(self._heads) >= _REMEMBERED:
            self._heads.clear()
            self._heads_at = self._table.changes
        else:
            self._heads[block] = head
        return head

    def trailers(self, block: bytes) -> None:
        """Check a request's trailers, which mean nothing to us; raises as `request` does."""
        _check_fields(self._decode(block))

    def skip(self, block: bytes) -> None:
        """Decode a block only for the sake of the dynamic table."""
        self._decode(block)

    def _decode(self, block: bytes) -> list[Field]:
        if block and block[0] & _SIZE_UPDATE_MASK == _SIZE_UPDATE:
            self._table.changes += 1
        try:
            fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header list far above the limit") from None
        except HPACKError:
            raise H2ConnectionError(ErrorCode.COMPRESSION_ERROR, "header block that is no HPACK") from None
        if sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in fields) > self._max_list_bytes:
            raise H2StreamError(ErrorCode.ENHANCE_YOUR_CALM, "header list above the limit")
        return fields


class _WatchedTable(HeaderTable):
    """A dynamic table that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)


def request_head(fields: list[Field]) -> RequestHead:
    """The head of a request by RFC 9113 8.3.1; raises H2StreamError when it is malformed."""
    pseudo: dict[bytes, bytes] = {}
    regular = 0
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _REQUEST_PSEUDO or name in pseudo:
            raise _malformed("pseudo-header unknown or repeated")
        pseudo[name] = value
        regular += 1
    rest = _check_fields(fields[regular:])
    if not (pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")):
        raise _malformed("pseudo-header missing")
    return RequestHead(pseudo[b":method"], pseudo[b":path"], rest, _content_length(rest))


def _check_fields(fields: Iterable[Field]) -> dict[bytes, bytes]:
    by_name: dict[bytes, bytes] = {}
    for name, value in fields:
        if not _NAME.fullmatch(name) or _BAD_VALUE.search(value):
            raise _malformed("field with a character that is not allowed")
        if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
            raise _malformed("field that speaks of the connection")
        by_name[name] = by_name[name] + b"," + value if name in by_name else value
    return by_name


def _content_length(fields: dict[bytes, bytes]) -> int | None:
    text = fields.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise _malformed("content-length that is no number")
    return int(text)


def _malformed(reason: str) -> H2StreamError:
    return H2StreamError(ErrorCode.PROTOCOL_ERROR, reason)


def literal(name: bytes, value: bytes) -> bytes:
    """A field as an HPACK literal without indexing, which needs no table on either side (RFC 7541 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    prefix = bytearray(b"\x7f")
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + text
