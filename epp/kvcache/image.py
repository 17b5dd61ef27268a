"""Images of what ranks hold: pieces that another index takes in, its prefix keys being made with the same secret."""

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from epp.kvcache.events import Tier
from epp.kvcache.layers import NOWHERE, Layer
from epp.kvcache.places import Forest
from epp.kvcache.runs import OFFSET_BITS, OFFSET_MASK, Run

PIECE = 2048
"""Blocks of one segment at most, so that taking one out or in is a short step."""

_Unsigned = Annotated[int, Meta(ge=0)]

Anchors = dict[int, int]
"""Prefix keys that segments of an image begin behind, each with its place in the index that is filled."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of one rank and tier that follow each other.

    `keys` are the prefix keys of all blocks, held or not, 8 bytes each, little-endian. `offsets` (4 bytes each) says
    which of them is held under each of `hashes` (8 bytes each); empty when hash i names block i.
    """

    tier: Annotated[int, Meta(ge=0, le=3)]
    block_size: Annotated[int, Meta(ge=1, le=65536)]
    start: Annotated[int, Meta(ge=0, le=1 << 20)]
    """Blocks before the first one."""
    before: _Unsigned
    """Prefix key of all that precedes."""
    keys: bytes
    offsets: bytes
    hashes: bytes
    copies: dict[_Unsigned, Annotated[int, Meta(ge=1)]] = {}
    """Copies beyond the first, by hash."""

    @property
    def blocks(self) -> int:
        """Hashes of held blocks."""
        return len(self.hashes) // 8


class RankImage(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is known of one rank, and up to which batch of its publisher."""

    source: str
    """Where its events come from."""
    incarnation: tuple[str, str, int, str]
    """Of the endpoint: name, uid, generation, `ip:port`."""
    sequence: _Unsigned
    """Number of the last batch that the image contains."""
    digests: dict[_Unsigned, _Unsigned]
    """Recent batches by number, the last one included: XXH3-64 of their bytes."""
    complete: bool
    """Whether every batch since the publisher's start, or since its last clearing, is in it."""
    block_size: Annotated[int, Meta(ge=0, le=65536)]
    """As events said; 0 if none did."""
    groups: dict[int, bool]
    """KV cache groups, and which of them are full attention."""
    segments: tuple[Segment, ...] = ()

    @property
    def blocks(self) -> int:
        """Hashes of held blocks."""
        return sum(segment.blocks for segment in self.segments)


class ImageIndex(Protocol):
    """An index that images come from and go to."""

    def capture(self, rank: int) -> Iterator[Segment | None]:
        """What the rank holds at the time of the call, in short steps; what was only assumed is left out."""

    def restore(self, rank: int, segment: Segment, anchors: Anchors) -> None:
        """The rank holds the blocks of a segment too, all of which it did not hold before."""


def anchors_of(images: Iterable[RankImage]) -> Anchors:
    """What all images of one snapshot share while an index is filled from them."""
    return {segment.before: NOWHERE for image in images for segment in image.segments}


def fill(index: ImageIndex, rank: int, segments: Sequence[Segment], anchors: Anchors) -> Iterator[None]:
    """Bring segments of one rank into an index, pausing after each."""
    for segment in sorted(segments, key=_by_depth):
        index.restore(rank, segment, anchors)
        yield


def _by_depth(segment: Segment) -> int:
    return segment.start * segment.block_size


def words(raw: bytes, code: str = "Q") -> "array[int]":
    """Little-endian unsigned integers; of 8 bytes, or of 4 with code "I"."""
    values = array(code)
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def packed(numbers: Sequence[int], code: str = "Q") -> bytes:
    """The inverse of `words`."""
    values = array(code, numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A run as it was."""

    start: int
    before: int
    block_size: int
    keys: "array[int]"


class LayerCapture:
    """One layer as it is now; its segments may be read while it goes on changing."""

    def __init__(self, tier: Tier, layer: Layer, runs: Mapping[int, tuple[Run, Forest]]) -> None:
        self._tier = tier
        self._places = dict(layer.places)
        self._copies = dict(layer.copies)
        self._runs = {
            number: _Frozen(run.start, run.before, forest.block_size, run.share())
            for number, (run, forest) in ((number, runs[number]) for number in layer.runs)
        }

    def segments(self) -> Iterator[Segment | None]:
        """Each step handles `PIECE` blocks or a run; None when it brought no segment yet."""
        held: dict[int, list[tuple[int, int]]] = {}
        for i, (hash_, place) in enumerate(self._places.items(), 1):
            if hash_ >= 0:
                held.setdefault(place >> OFFSET_BITS, []).append((place & OFFSET_MASK, hash_))
            if i % PIECE == 0:
                yield None
        self._places.clear()
        for number, blocks in held.items():
            blocks.sort()
            yield from self._pieces(self._runs[number], blocks)

    def _pieces(self, run: _Frozen, blocks: list[tuple[int, int]]) -> Iterator[Segment]:
        first = 0
        while first < len(blocks):
            start = blocks[first][0] // PIECE * PIECE
            behind = first
            while behind < len(blocks) and blocks[behind][0] < start + PIECE:
                behind += 1
            yield self._segment(run, start, blocks[first:behind])
            first = behind

    def _segment(self, run: _Frozen, start: int, blocks: list[tuple[int, int]]) -> Segment:
        keys = run.keys[start : blocks[-1][0] + 1]
        offsets = [offset - start for offset, _ in blocks]
        hashes = [hash_ for _, hash_ in blocks]
        return Segment(
            tier=self._tier,
            block_size=run.block_size,
            start=run.start + start,
            before=run.keys[start - 1] if start else run.before,
            keys=packed(keys),
            offsets=b"" if offsets == list(range(len(keys))) else packed(offsets, "I"),
            hashes=packed(hashes),
            copies={hash_: self._copies[hash_] for hash_ in hashes if hash_ in self._copies} if self._copies else {},
        )
