"""Every form in which engines send KV events is understood, and nothing strange costs more than itself."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kvcache.decoding import BatchDecoder
from epp.kvcache.events import Cleared, Removed, Skip, Stored, Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.run_index import RunIndex
from epp.prompts.prompt import Media
from tests.kvcache.decoded import Decoded, decoded

DATA = Path(__file__).parents[1] / "data" / "kv_events"
CASES = {case["name"]: case for case in json.loads((DATA / "payloads.json").read_text())}
FRAMES = json.loads((DATA / "frames.json").read_text())

SKIPPED = {
    "sglang_v0_5_23_loadstat": Skip.LOAD,
    "vllm_v0_33_0_hybrid_swa_empty_hashes": Skip.GROUP,
    "vllm_v0_33_0_partial_block": Skip.GROUP,
    "vllm_v0_33_0_stored_all_fields": Skip.EMBEDS,
}
TIERS = {
    "lmcache_v0_5_6_stored": Tier.HOST,
    "vllm_v0_33_0_cpu_self_describing": Tier.HOST,
    "vllm_v0_33_0_simple_cpu_offload": Tier.HOST,
}
MASK = (1 << 64) - 1


def number(value: Any) -> int:
    return int.from_bytes(bytes.fromhex(value["__bytes_hex__"])[-8:]) if isinstance(value, dict) else value & MASK


def field(event: Any, name: str, position: int) -> Any:
    return event[name] if isinstance(event, dict) else event[position]


def decode(*events: object, decoder: BatchDecoder | None = None) -> Decoded:
    return decoded(decoder or BatchDecoder(), msgspec.msgpack.encode([1.5, list(events), 0]))


def stored(**more: object) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": list(range(8))}
    return event | {"block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None} | more


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_recorded_form_is_understood(name):
    case = CASES[name]
    batch = decoded(BatchDecoder(), bytes.fromhex(case["hex"]))
    if name in SKIPPED:
        assert batch.skipped == {SKIPPED[name]: 1}
        assert not batch.events
        return
    assert not batch.skipped
    expected = case["decoded"]
    assert len(batch.events) == len(expected[1])
    for event, raw in zip(batch.events, expected[1], strict=True):
        tag = field(raw, "type", 0)
        if tag == "AllBlocksCleared":
            assert event == Cleared()
            continue
        assert event.hashes == [number(value) for value in field(raw, "block_hashes", 1)]
        assert event.tier is TIERS.get(name, Tier.GPU)
        if tag == "BlockStored":
            parent = field(raw, "parent_block_hash", 2)
            assert event.parent == (None if parent is None else number(parent))
            assert list(event.tokens) == field(raw, "token_ids", 3)
            assert event.block_size == field(raw, "block_size", 4)


@pytest.mark.parametrize("version", sorted(FRAMES))
def test_captured_messages_of_an_engine_make_an_index(version):
    index = RunIndex(PrefixKeys())
    rank = index.open(0)
    decoder = BatchDecoder()
    held: set[int] = set()
    most = 0
    for _, _, payload in FRAMES[version]["live"]:
        batch = decoded(decoder, bytes.fromhex(payload))
        assert not batch.skipped
        for event in batch.events:
            if isinstance(event, Stored):
                assert index.store(rank, event) is None
                held.update(event.hashes)
            elif isinstance(event, Removed):
                index.remove(rank, event)
                held.difference_update(event.hashes)
            else:
                index.clear(rank)
                held.clear()
            assert index.blocks(rank) == len(held)
        most = max(most, len(held))
    assert most > 4
    assert not held  # the recording ends with a clearing


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "FutureEvent"}, Skip.UNKNOWN),
        (["FutureEvent", 1], Skip.UNKNOWN),
        ({"no": "type"}, Skip.UNKNOWN),
        (5, Skip.MALFORMED),
        ([], Skip.MALFORMED),
        (["BlockStored"], Skip.MALFORMED),
        (["BlockStored", [1]], Skip.MALFORMED),
        (stored(block_hashes=["text"]), Skip.MALFORMED),
        (stored(token_ids=[-1] * 8), Skip.MALFORMED),
        (stored(token_ids=[2**32] * 8), Skip.MALFORMED),
        (stored(token_ids=["a"] * 8), Skip.MALFORMED),
        (stored(token_ids="a" * 8), Skip.MALFORMED),
        (stored(token_ids=b"a" * 8), Skip.MALFORMED),
        (stored(token_ids=[[]] * 8), Skip.MALFORMED),
        (stored(block_hashes=b"ab"), Skip.MALFORMED),
        (stored(block_size="4"), Skip.MALFORMED),
        (stored(block_size=4.0), Skip.MALFORMED),
        (stored(group_idx=[0]), Skip.MALFORMED),
        (stored(group_idx=2**40), Skip.MALFORMED),
        (stored(extra_keys=[[[7, 0]], None]), Skip.MALFORMED),
        (stored(extra_keys=[[["cat", 1.5]], None]), Skip.MALFORMED),
        (stored(extra_keys=[[["cat", 2**63]], None]), Skip.MALFORMED),
        (stored(lora_name=7), Skip.MALFORMED),
        (stored(medium=7), Skip.MALFORMED),
        (stored(extra_keys=7), Skip.MALFORMED),
        (stored(block_size=-4), Skip.SHAPE),
        (stored(token_ids=[1] * 7), Skip.SHAPE),
        (stored(group_idx=1), Skip.GROUP),
        (stored(group_idx=0, kv_cache_spec_kind="sliding_window"), Skip.GROUP),
        (stored(locality="REMOTE"), Skip.REMOTE),
        (stored(medium="TAPE"), Skip.REMOTE),
        (stored(parent_block_hash=2), Skip.SELF_PARENT),
        (stored(lora_id=3), Skip.ADAPTER),
        (stored(extra_keys=[[b"x" * 32], None]), Skip.EMBEDS),
        (stored(extra_keys=[None, ["media id without offset"]]), Skip.MEDIA),
        (stored(block_mm_infos=[{"mm_objects": []}, None]), Skip.MEDIA),
    ],
)
def test_what_cannot_be_used_is_skipped_alone(event, reason):
    batch = decode(event, {"type": "AllBlocksCleared"})
    assert batch.events == [Cleared()]
    assert batch.skipped == {reason: 1}


def test_longer_arrays_and_more_keys_are_no_reason_to_skip():
    array = ["BlockStored", [1], None, [1, 2], 2, None, "GPU", None, None, 0, "full_attention", None, "new", 7]
    batch = decode(array, stored(something="new"), ["BlockRemoved", [1], "GPU", 0, "LOCAL", "new"])
    assert [type(event) for event in batch.events] == [Stored, Stored, Removed]
    assert not batch.skipped


def test_namespace_comes_from_name_and_salt():
    event = decode(stored(lora_id=1, lora_name="sql", extra_keys=[["sql", "mine"], ["sql"]])).events[0]
    assert (event.adapter, event.salt) == ("sql", "mine")
    event = decode(stored(cache_salt="mine")).events[0]  # SGLang's form
    assert (event.adapter, event.salt) == ("", "mine")


def test_an_item_counts_from_the_block_in_which_it_begins():
    event = decode(stored(extra_keys=[[["cat", -3]], [["cat", -7], ["dog", 1]]])).events[0]
    assert event.media == (Media("dog", 5),)


def test_eagle_pairs_stand_for_their_first_token():
    event = decode(stored(token_ids=[[i, i + 1] for i in range(8)])).events[0]
    assert list(event.tokens) == list(range(8))


def test_a_group_is_recognised_in_its_removals():
    decoder = BatchDecoder()
    decode(stored(group_idx=1, kv_cache_spec_kind="full_attention"), decoder=decoder)
    decode(stored(group_idx=0, kv_cache_spec_kind="sliding_window"), decoder=decoder)
    gone = [{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": i} for i in range(3)]
    batch = decode(*gone, decoder=decoder)
    assert len(batch.events) == 1
    assert batch.skipped == {Skip.GROUP: 2}


def test_an_entry_finer_than_a_block_is_partial():
    decoder = BatchDecoder()
    decode(stored(), decoder=decoder)
    partial = stored(block_hashes=[3], token_ids=[1, 2], block_size=2, parent_block_hash=2)
    assert decode(partial, decoder=decoder).skipped == {Skip.PARTIAL: 1}


@given(st.binary(max_size=200))
def test_no_bytes_raise(payload):
    decoded(BatchDecoder(), payload)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from([*stored(), "group_idx", "kv_cache_spec_kind", "extra_keys", "locality", "block_mm_infos"])


@given(st.dictionaries(names, values, max_size=4), values)
def test_no_field_value_raises_or_costs_the_next_event(fields, other):
    batch = decode(stored(**fields), other, stored())
    assert batch.events
    for event in batch.events:
        index = RunIndex(PrefixKeys(b"x"))
        if isinstance(event, Stored):
            index.store(index.open(0), event)
