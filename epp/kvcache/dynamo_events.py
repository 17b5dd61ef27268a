"""Dynamo's own event plane over ZMQ: its four frames, and what they say of one rank.

A message is `[topic, publisher id, number, body]`: id and number are 8 bytes, big-endian, and the body is a version
byte 1, the length (4 bytes, big-endian) and a msgpack map whose key `payload` holds the packed list of router events.
Blocks come without token ids, under the hash of their tokens alone (`epp.kvcache.dynamo_index`).
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from epp.kvcache.events import Cleared, Event, Removed, Skip, Stored, Tier
from epp.kvcache.unpacking import unpack

TOPIC = b"kv-events"

_VERSION = 1
_HEADER_BYTES = 5
_WORDS = 2
"""32-bit words of a tokens hash; they take the place of token ids."""
_MASK = (1 << 64) - 1
_TIERS = {"device": Tier.GPU, "host_pinned": Tier.HOST, "disk": Tier.DISK, "external": Tier.EXTERNAL}

_decode = msgspec.msgpack.Decoder().decode


class _Blocks(msgspec.Struct):
    block_hash: int
    tokens_hash: int


class _Stored(msgspec.Struct):
    blocks: list[_Blocks]
    parent_hash: int | None = None


class _Removed(msgspec.Struct):
    block_hashes: list[int]


class _Data(msgspec.Struct):
    stored: _Stored | None = None
    removed: _Removed | None = None


class _Event(msgspec.Struct):
    event_id: int
    data: _Data | str
    dp_rank: int = 0


class _RouterEvent(msgspec.Struct):
    worker_id: int
    event: _Event
    storage_tier: str = "device"


def message(frames: list[bytes]) -> tuple[bytes, int, bytes] | None:
    """Publisher, number and packed router events of a message; None for what is no message of KV events."""
    if len(frames) != 4 or frames[0].rpartition(b".")[2] != TOPIC or len(frames[1]) != 8 or len(frames[2]) != 8:
        return None
    body = frames[3]
    if len(body) < _HEADER_BYTES or body[0] != _VERSION:
        return None
    if int.from_bytes(body[1:_HEADER_BYTES], "big") != len(body) - _HEADER_BYTES:
        return None
    try:
        envelope = _decode(memoryview(body)[_HEADER_BYTES:])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    payload = envelope.get("payload") if isinstance(envelope, dict) else None
    if not isinstance(payload, bytes):
        return None
    return frames[1], int.from_bytes(frames[2], "big"), payload


class DynamoDecoder:
    """Decodes the router events of one worker and rank, each event id once.

    `cursor` is the last event id; ids that were passed over are counted as missed, and only a dump of the worker's own
    index could bring them back.
    """

    def __init__(self, worker: int | None, rank: int) -> None:
        self._worker = worker
        self._rank = rank
        self.cursor: int | None = None

    @property
    def block_size(self) -> int:
        """The plane does not tell it."""
        return 0

    @property
    def groups(self) -> Mapping[int, bool]:
        """The worker leaves out all but full attention."""
        return {}

    def decode(self, payload: bytes, skipped: Counter[Skip]) -> Iterator[Event | None]:
        """As `BatchDecoder.decode`, for a list of router events."""
        try:
            raw_events = yield from unpack(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raw_events = None
        if not isinstance(raw_events, list):
            skipped[Skip.PAYLOAD] += 1
            return
        for raw in raw_events:
            yield self._usable(raw, skipped)

    def _usable(self, raw: Any, skipped: Counter[Skip]) -> Event | None:
        try:
            router_event = msgspec.convert(raw, _RouterEvent)
        except (msgspec.ValidationError, RecursionError):
            skipped[Skip.MALFORMED] += 1
            return None
        event = router_event.event
        if self._worker not in (None, router_event.worker_id) or event.dp_rank != self._rank:
            skipped[Skip.OTHER_RANK] += 1
            return None
        if self.cursor is not None and event.event_id <= self.cursor:
            skipped[Skip.REPEATED] += 1
            return None
        if self.cursor is not None and event.event_id > self.cursor + 1:
            skipped[Skip.MISSED] += event.event_id - self.cursor - 1
        self.cursor = event.event_id
        usable = _event(event.data, router_event.storage_tier)
        if isinstance(usable, Skip):
            skipped[usable] += 1
            return None
        return usable


def _event(data: _Data | str, storage_tier: str) -> Event | Skip:
    if data == "cleared":
        return Cleared()
    if isinstance(data, str):
        return Skip.UNKNOWN
    tier = _TIERS.get(storage_tier)
    if tier is None:
        return Skip.REMOTE
    if data.removed is not None:
        return Removed([hash_ & _MASK for hash_ in data.removed.block_hashes], tier, whole=True)
    if data.stored is None:
        return Skip.UNKNOWN
    return _stored(data.stored, tier)


def _stored(stored: _Stored, tier: Tier) -> Stored | Skip:
    hashes = [block.block_hash & _MASK for block in stored.blocks]
    parent = None if stored.parent_hash is None else stored.parent_hash & _MASK
    if not hashes:
        return Skip.SHAPE
    if parent in hashes:
        return Skip.SELF_PARENT
    return Stored(hashes, parent, words_of([block.tokens_hash for block in stored.blocks]), _WORDS, tier)


def words_of(tokens_hashes: list[int]) -> "array[int]":
    """Tokens hashes as pairs of 32-bit words, the low one first."""
    words = array("I")
    for hash_ in tokens_hashes:
        words.append(hash_ & 0xFFFFFFFF)
        words.append(hash_ >> 32 & 0xFFFFFFFF)
    return words
