"""Decode batches of KV events: vLLM 0.9 to 0.33, SGLang, TensorRT-LLM, LMCache and Dynamo's relays.

A batch is a msgpack array `[time, events, rank]`, the rank missing in vLLM 0.9.0. An event is an array that begins
with its name (vLLM before 0.24, SGLang before 0.5.20) or a map with the key `type`. Both may come on one connection.
Whatever cannot be used is skipped alone and counted; it never costs the rest of its batch.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from epp.kvcache.events import Cleared, Event, Removed, Skip, Stored, Tier
from epp.kvcache.unpacking import unpack
from epp.prompts.prompt import Media

_MASK = (1 << 64) - 1

_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED = ("block_hashes", "medium", "group_idx")

_TIERS = {
    "": Tier.GPU,
    "GPU": Tier.GPU,
    "DEVICE": Tier.GPU,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
    "FS": Tier.DISK,
    "OBJ": Tier.DISK,
    "EXTERNAL": Tier.EXTERNAL,
    "NETWORK": Tier.EXTERNAL,
    "REMOTE": Tier.EXTERNAL,
    "SHARED": Tier.EXTERNAL,
}
_MAX_GROUPS = 1024
_STEP = 16_384
"""Token ids that are converted without a pause."""
_FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class _SkipError(Exception):
    def __init__(self, reason: Skip) -> None:
        self.reason = reason


def _skip(reason: Skip) -> NoReturn:
    raise _SkipError(reason)


class BatchDecoder:
    """Decodes the batches of one rank; it remembers which cache groups are full attention."""

    def __init__(self, block_size: int = 0, groups: Mapping[int, bool] | None = None) -> None:
        self._group_is_full: dict[int, bool] = dict(groups or {})
        self._block_size = block_size

    @property
    def groups(self) -> Mapping[int, bool]:
        """Cache groups that were named so far, and which of them are full attention."""
        return self._group_is_full

    @property
    def block_size(self) -> int:
        """Tokens of a block as stores on the GPU say; 0 before the first."""
        return self._block_size

    def decode(self, payload: bytes, skipped: Counter[Skip]) -> Iterator[Event | None]:
        """The usable events of one batch in order, and a None wherever the work may pause; what is not usable is
        counted in `skipped`. Never raises.
        """
        try:
            batch = yield from unpack(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            batch = None
        if isinstance(batch, list) and batch and batch[0] == "LoadStat":
            skipped[Skip.LOAD] += 1
        elif not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
            skipped[Skip.PAYLOAD] += 1
        else:
            for raw in batch[1]:
                if isinstance(raw, dict) and type(raw.get("token_ids")) is list:
                    yield from _tokens_in_steps(raw)
                yield self._usable(raw, skipped)

    def _usable(self, raw: Any, skipped: Counter[Skip]) -> Event | None:
        try:
            return self._event(raw)
        except _SkipError as skip:
            skipped[skip.reason] += 1
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            skipped[Skip.MALFORMED] += 1
        return None

    def _event(self, raw: Any) -> Event:
        if isinstance(raw, dict):
            tag, fields = raw.get("type"), raw
        elif isinstance(raw, list) and raw:
            tag = raw[0]
            fields = dict(zip(_REMOVED if tag == "BlockRemoved" else _STORED, raw[1:], strict=False))
        else:
            _skip(Skip.MALFORMED)
        if tag == "BlockStored":
            return self._stored(fields)
        if tag == "BlockRemoved":
            return self._removed(fields)
        if tag == "AllBlocksCleared":
            return Cleared()
        _skip(Skip.UNKNOWN)

    def _stored(self, fields: Mapping[str, Any]) -> Stored:
        self._check_group(fields)
        tier = _tier(fields)
        hashes = _hashes(fields)
        parent = fields["parent_block_hash"]
        tokens = fields["token_ids"]
        block_size = fields["block_size"]
        if not tokens:
            return Stored(hashes, None, array("I"), 0, tier)
        if type(tokens) not in (list, array) or type(block_size) is not int:
            _skip(Skip.MALFORMED)
        if isinstance(tokens[0], list):
            tokens = [pair[0] for pair in tokens]  # with EAGLE each entry is (token, next token)
        if block_size < 1 or len(tokens) != block_size * len(hashes):
            _skip(Skip.SHAPE)
        tokens = _token_ids(tokens)
        self._check_block_size(block_size, len(hashes), tier)
        stored = Stored(hashes, None if parent is None else _hash(parent), tokens, block_size, tier)
        if stored.parent in hashes:
            _skip(Skip.SELF_PARENT)
        _add_namespace(stored, fields)
        return stored

    def _removed(self, fields: Mapping[str, Any]) -> Removed:
        group = _group(fields)
        if group is not None and not self._group_is_full.get(group, group == 0):
            _skip(Skip.GROUP)
        return Removed(_hashes(fields), _tier(fields))

    def _check_group(self, fields: Mapping[str, Any]) -> None:
        """Only a store names the kind of its group; its removals are recognised by the number."""
        group, kind = _group(fields), fields.get("kv_cache_spec_kind")
        full = kind in _FULL_ATTENTION if kind is not None else group in (None, 0)
        if group is not None:
            full = full and not any(known for other, known in self._group_is_full.items() if other != group)
            self._group_is_full[group] = full
        if not full:
            _skip(Skip.GROUP)

    def _check_block_size(self, block_size: int, blocks: int, tier: Tier) -> None:
        """A single entry finer than the blocks seen so far is a partial block."""
        if tier is not Tier.GPU:
            return
        if block_size < self._block_size and blocks == 1 and self._block_size % block_size == 0:
            _skip(Skip.PARTIAL)
        self._block_size = max(self._block_size, block_size)


def _token_ids(tokens: "list[int] | array[int]") -> "array[int]":
    """Raises TypeError or OverflowError for what is no token id."""
    return array("I", tokens) if isinstance(tokens, list) else tokens


def _tokens_in_steps(fields: dict[str, Any]) -> Iterator[None]:
    """Make an array of many token ids, with pauses; what are none stay as they are."""
    tokens = fields["token_ids"]
    if len(tokens) <= _STEP:
        return
    ids = array("I")
    try:
        for start in range(0, len(tokens), _STEP):
            ids.extend(tokens[start : start + _STEP])
            yield
    except (TypeError, OverflowError):
        return
    fields["token_ids"] = ids
    while tokens:  # to free them takes its time too
        del tokens[-_STEP:]
        yield


def _group(fields: Mapping[str, Any]) -> int | None:
    """The number of the cache group; bounded, since each is remembered."""
    group = fields.get("group_idx")
    if group is not None and (type(group) is not int or not 0 <= group < _MAX_GROUPS):
        _skip(Skip.MALFORMED)
    return group


def _hashes(fields: Mapping[str, Any]) -> list[int]:
    values = fields["block_hashes"]
    if type(values) is not list:
        _skip(Skip.MALFORMED)
    try:
        return [value & _MASK for value in values]
    except TypeError:
        return [_hash(value) for value in values]


def _hash(value: Any) -> int:
    """Any hash as an unsigned 64-bit integer; of a long digest the last 8 bytes, as vLLM shortens it."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    if type(value) is not int:
        _skip(Skip.MALFORMED)
    return value & _MASK


def _tier(fields: Mapping[str, Any]) -> Tier:
    locality = fields.get("locality")
    tier = _TIERS.get((fields.get("medium") or "").upper())
    if tier is None or locality not in (None, "LOCAL"):
        _skip(Skip.REMOTE)
    return tier


def _add_namespace(stored: Stored, fields: Mapping[str, Any]) -> None:
    """Set adapter, salt and media.

    vLLM's `extra_keys` has per block the adapter's name, then `[media id, offset from the block]` for each item that
    touches the block, then the salt (first block of a prompt only), then a digest of prompt embeddings.
    """
    stored.adapter = _text(fields.get("lora_name"))
    if not stored.adapter and fields.get("lora_id"):
        _skip(Skip.ADAPTER)
    stored.salt = _text(fields.get("cache_salt"))
    if any(fields.get("block_mm_infos") or ()):
        _skip(Skip.MEDIA)  # Dynamo's TensorRT-LLM relay says which items lie in a block, but not where
    media: list[Media] = []
    extra_keys = fields.get("extra_keys") or ()
    for i, block in enumerate(extra_keys) if any(extra_keys) else ():
        for extra in block or ():
            if any(isinstance(other, bytes) for other in block):
                _skip(Skip.EMBEDS)
            _add_extra(stored, media, i, extra)
    stored.media = tuple(media)


def _add_extra(stored: Stored, media: list[Media], block: int, extra: Any) -> None:
    if isinstance(extra, list):
        identifier, offset = extra
        if type(identifier) is not str or type(offset) is not int or offset >= stored.block_size:
            _skip(Skip.MALFORMED)
        if offset >= 0:  # an item that began in an earlier block is already in the keys
            media.append(Media(identifier, block * stored.block_size + offset))
    elif extra != stored.adapter:
        if block or stored.parent is not None or stored.salt not in ("", extra):
            _skip(Skip.MEDIA)
        stored.salt = _text(extra)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        _skip(Skip.MALFORMED)
    return value
