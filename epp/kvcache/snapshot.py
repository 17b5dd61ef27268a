"""Snapshots of an index as a stream of bytes: for peers that start late, and for a file.

A snapshot is a sequence of records, each 4 bytes of length (little-endian) and a msgpack array whose first element
names its kind: one `header`, then for each rank a `rank` followed by its `segment`s, and one `end` with a digest of
all before it. The prefix keys in it mean nothing to an index whose keys have another secret.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

import msgspec
import numpy as np

from epp.kvcache.image import PIECE, RankImage, Segment

VERSION = 1
"""Raised whenever an older reader would misunderstand a snapshot."""

_MAGIC = "epp kv index"
_DIGEST_BYTES = 16
_LENGTH_BYTES = 4
_MAX_RECORD = 1 << 20
_CHUNK = 1 << 15


class SnapshotError(ValueError):
    """The bytes are no snapshot that may be used; the text says why."""


class _Header(msgspec.Struct, frozen=True, array_like=True, tag="header"):
    magic: str
    version: int
    secret_id: bytes = b""
    made_at: float = 0.0


class _Rank(msgspec.Struct, frozen=True, array_like=True, tag="rank"):
    image: RankImage


class _Segment(msgspec.Struct, frozen=True, array_like=True, tag="segment"):
    segment: Segment


class _End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    digest: bytes


_Record: TypeAlias = _Header | _Rank | _Segment | _End
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode
_decode_version = msgspec.msgpack.Decoder(list[object]).decode


@dataclass(frozen=True, slots=True)
class RankPieces:
    """One rank to be written: what is known of it, and its segments in short steps."""

    image: RankImage
    segments: Iterator[Segment | None]


def encode(secret_id: bytes, ranks: Iterable[RankPieces | None]) -> Iterator[bytes]:
    """The bytes of a snapshot in chunks of about 32 to 100 KiB, each made in a short step.

    An empty chunk is a step that brought nothing yet. The ranks are taken one after the other, each as it is when its
    turn comes, so nothing has to stand still in the meantime.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    waiting = bytearray()
    for record in _records(secret_id, ranks):
        if record is not None:
            waiting += _framed(_encode(record))
        if len(waiting) < _CHUNK:
            yield b""
            continue
        digest.update(waiting)
        yield bytes(waiting)
        waiting.clear()
    digest.update(waiting)
    yield bytes(waiting) + _framed(_encode(_End(digest.digest())))


def _records(secret_id: bytes, ranks: Iterable[RankPieces | None]) -> Iterator[_Record | None]:
    yield _Header(_MAGIC, VERSION, secret_id, time.time())
    for rank in ranks:
        if rank is None:
            yield None
            continue
        yield _Rank(rank.image)
        for segment in rank.segments:
            yield None if segment is None else _Segment(segment)


def _framed(record: bytes) -> bytes:
    return len(record).to_bytes(_LENGTH_BYTES, "little") + record


@dataclass(slots=True)
class Decoder:
    """Takes the bytes of a snapshot as they come, and gives each rank when all of it is there.

    Raises SnapshotError at the first byte that cannot belong to a snapshot of this version, made with the secret
    `secret_id`, with at most `max_blocks` blocks. Nothing may be used before `finished`, if the bytes came from where
    they can be damaged.
    """

    secret_id: bytes
    max_blocks: int
    finished: bool = False
    made_at: float = 0.0
    """When the snapshot was begun, in seconds since 1970."""
    blocks: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    _digest: "blake2b" = field(default_factory=lambda: blake2b(digest_size=_DIGEST_BYTES))
    _begun: bool = False
    _image: RankImage | None = None
    _segments: list[Segment] = field(default_factory=list)

    def feed(self, data: bytes) -> Iterator[RankImage | None]:
        """Ranks that end in `data`, in short steps; None is a step that ended none."""
        self._buffer += data
        done = 0
        while (behind := self._record_end(done)) is not None:
            record = bytes(self._buffer[done:behind])
            done = behind
            yield from self._take(record)
        del self._buffer[:done]

    def _record_end(self, start: int) -> int | None:
        first = start + _LENGTH_BYTES
        if len(self._buffer) < first:
            return None
        length = int.from_bytes(self._buffer[start:first], "little")
        if length > _MAX_RECORD:
            raise SnapshotError(f"a record of {length} bytes")
        return first + length if len(self._buffer) >= first + length else None

    def _take(self, framed: bytes) -> Iterator[RankImage | None]:
        if self.finished:
            raise SnapshotError("bytes behind the end")
        if not self._begun:
            self._begin(framed[_LENGTH_BYTES:])
        try:
            record = _decode(framed[_LENGTH_BYTES:])
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"no record of a snapshot: {error}") from None
        if isinstance(record, _End):
            if record.digest != self._digest.digest():
                raise SnapshotError("the digest does not fit: the bytes were changed")
            self.finished = True
            yield self._whole_rank()
            return
        self._digest.update(framed)
        if isinstance(record, _Rank):
            yield self._whole_rank()
            self._image = record.image
        elif isinstance(record, _Segment):
            self._add(record.segment)
            yield None

    def _begin(self, record: bytes) -> None:
        """Check the header loosely first: what a later version says behind its number is not known here."""
        try:
            kind, magic, version, *_ = _decode_version(record)
        except (msgspec.MsgspecError, ValueError):
            raise SnapshotError("no snapshot") from None
        if kind != "header" or magic != _MAGIC:
            raise SnapshotError("no snapshot")
        if version != VERSION:
            raise SnapshotError(f"version {version} of the format; {VERSION} is understood")
        header = msgspec.msgpack.decode(record, type=_Header)
        if header.secret_id != self.secret_id:
            raise SnapshotError("its prefix keys have another secret")
        self.made_at = header.made_at
        self._begun = True

    def _add(self, segment: Segment) -> None:
        if self._image is None:
            raise SnapshotError("a segment without a rank")
        problem = _problem(segment)
        if problem:
            raise SnapshotError(problem)
        self.blocks += segment.blocks
        if self.blocks > self.max_blocks:
            raise SnapshotError(f"more than {self.max_blocks} blocks")
        self._segments.append(segment)

    def _whole_rank(self) -> RankImage | None:
        image, self._image = self._image, None
        segments, self._segments = tuple(self._segments), []
        return None if image is None else msgspec.structs.replace(image, segments=segments)


def _problem(segment: Segment) -> str:
    keys, hashes = len(segment.keys), len(segment.hashes)
    if keys % 8 or hashes % 8 or not 0 < keys <= 8 * PIECE or not hashes:
        return "a segment with a wrong number of keys or hashes"
    if not segment.offsets:
        return "" if keys == hashes else "a segment with more or less hashes than keys"
    if len(segment.offsets) * 2 != hashes:
        return "a segment with more or less offsets than hashes"
    offsets = np.frombuffer(segment.offsets, dtype="<u4").astype(np.int64)
    if offsets[-1] >= keys // 8 or (np.diff(offsets) < 0).any():
        return "a segment with offsets out of order"
    return ""
