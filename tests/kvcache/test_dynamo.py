"""Workers on Dynamo's event plane are known by hashes of their tokens alone."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.kvcache.dynamo_events import DynamoDecoder, message
from epp.kvcache.dynamo_index import DynamoIndex, tokens_hashes
from epp.kvcache.events import Cleared, Removed, Skip, Stored, Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.run_index import RunIndex
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Media, Prompt
from tests.kvcache.decoded import Decoded, decoded
from tests.kvcache.publisher import Publisher
from tests.kvcache.test_knowledge import World

DATA = Path(__file__).parent.parent / "data" / "dynamo_plane"
VERSIONS = ["v1.4.2", "v1.6.1"]
WORKER = 9227473997955127826


def frames(version: str, name: str) -> list[bytes]:
    data = (DATA / version / f"event_kv_{name}.bin").read_bytes()
    found, place = [], 4
    for _ in range(int.from_bytes(data[:4], "big")):
        length = int.from_bytes(data[place : place + 4], "big")
        found.append(data[place + 4 : place + 4 + length])
        place += 4 + length
    return found


def recorded(version: str, name: str, **of: object) -> Decoded:
    found = message(frames(version, name))
    assert found is not None
    return decoded(DynamoDecoder(**({"worker": None, "rank": 0} | of)), found[2])


@pytest.mark.parametrize("version", VERSIONS)
def test_captured_messages_are_understood(version):
    for case in json.loads((DATA / version / "events.json").read_text()):
        name = case["file"].removeprefix("event_kv_").removesuffix(".bin")
        found = message(frames(version, name))
        if name.startswith("metrics"):
            assert found is None
            continue
        assert found is not None
        publisher, number, payload = found
        assert int.from_bytes(publisher, "big") == case["envelope_without_payload"]["publisher_id"]
        assert number == case["envelope_without_payload"]["sequence"]
        rank = case["payload"][0]["event"]["dp_rank"]
        batch = decoded(DynamoDecoder(case["payload"][0]["worker_id"], rank), payload)
        assert len(batch.events) == len(case["payload"])
        assert not batch.skipped


def test_a_store_names_blocks_and_their_parent():
    (stored,) = recorded("v1.6.1", "stored_child_negative_hash").events
    assert isinstance(stored, Stored)
    assert (stored.hashes, stored.parent, stored.tier) == ([2**64 - 5], 1003, Tier.GPU)
    (removed,) = recorded("v1.6.1", "removed_2_blocks").events
    assert removed == Removed([1003, 2**64 - 5], Tier.GPU, whole=True)
    assert recorded("v1.6.1", "relay_cleared").events == [Cleared()]
    assert recorded("v1.6.1", "relay_stored_cpu").events[0].tier is Tier.HOST


VECTORS = json.loads((DATA / "hash_vectors.json").read_text())["tokens_hash"]


@pytest.mark.parametrize("case", [case for case in VECTORS if not case["mm_hashes"]])
def test_blocks_are_hashed_as_dynamo_does(case):
    prompt = Prompt(
        tokens=np.array(case["tokens"], dtype=np.uint32), namespace=namespace(case["lora"] or "", case["salt"] or "")
    )
    assert tokens_hashes(prompt, len(case["tokens"])).tolist() == [case["tokens_hash"]]


def test_hashes_end_where_media_begin():
    prompt = Prompt(tokens=np.arange(16, dtype=np.uint32), media=(Media("image", 9),))
    assert len(tokens_hashes(prompt, 4)) == 2


def test_each_event_counts_once_and_those_passed_over_are_counted():
    decoder = DynamoDecoder(1, 0)
    assert len(decoded(decoder, events(removal(3), removal(4))).events) == 2
    again = decoded(decoder, events(removal(4), removal(7), removal(8, worker=2), removal(8, rank=1)))
    assert len(again.events) == 1
    assert again.skipped == {Skip.REPEATED: 1, Skip.MISSED: 2, Skip.OTHER_RANK: 2}
    assert decoder.cursor == 7


def removal(number: int, *, worker: int = 1, rank: int = 0) -> dict[str, object]:
    return router_event(number, {"removed": {"block_hashes": [1]}}, worker=worker, rank=rank)


def router_event(number: int, data: object, *, worker: int = 1, rank: int = 0) -> dict[str, object]:
    return {
        "worker_id": worker,
        "storage_tier": "device",
        "event": {"event_id": number, "data": data, "dp_rank": rank},
    }


def events(*router_events: object) -> bytes:
    return msgspec.msgpack.encode(list(router_events))


@given(st.binary() | st.lists(st.binary() | st.integers() | st.text()).map(lambda x: msgspec.msgpack.encode(str(x))))
def test_wrong_bytes_give_an_empty_batch(payload):
    assert decoded(DynamoDecoder(1, 0), payload).events == []


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_wrong_frames_are_no_message(found, data):
    assert message(found) is None
    whole = frames("v1.6.1", "stored_3_blocks")
    body = whole[3]
    cut = data.draw(st.integers(0, len(body) - 1))
    assert message([*whole[:3], body[:cut]]) is None


def test_a_prompt_finds_the_blocks_of_its_tokens():
    index = DynamoIndex(RunIndex(PrefixKeys()), 4)
    rank = index.open(0)
    (stored,) = recorded("v1.6.1", "stored_3_blocks").events
    assert index.store(rank, stored) is None
    tokens = np.arange(100, 113, dtype=np.uint32)
    assert index.match(Prompt(tokens=tokens)).cached_tokens.tolist() == [12]
    assert index.match(Prompt(tokens=tokens[:12])).cached_tokens.tolist() == [8]
    assert index.match(Prompt(tokens=tokens, namespace=namespace("sql"))).cached_tokens.tolist() == [0]
    index.store(rank, stored)
    index.remove(rank, Removed([1002], whole=True))
    assert index.match(Prompt(tokens=tokens)).cached_tokens.tolist() == [4]


def wrapped(number: int, payload: bytes, publisher: int = 7) -> list[bytes]:
    body = msgspec.msgpack.encode({"publisher_id": publisher, "sequence": number, "payload": payload, "new": 1})
    header = b"\x01" + len(body).to_bytes(4, "big")
    return [b"kv-events", publisher.to_bytes(8, "big"), number.to_bytes(8, "big"), header + body]


def store(number: int, hashes: list[int], tokens: list[int], parent: int | None = None) -> dict[str, object]:
    names = tokens_hashes(Prompt(tokens=np.array(tokens, dtype=np.uint32)), 4).tolist()
    blocks = [{"block_hash": h, "tokens_hash": n, "mm_extra_info": None} for h, n in zip(hashes, names, strict=True)]
    return router_event(number, {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}})


async def test_a_worker_of_the_plane_is_followed_live(publisher: Publisher):
    world = World()
    await world.knowledge.start()
    try:
        worker = Endpoint(
            name="w", address="127.0.0.1", port=1, engine="dynamo", events_port=publisher.port, block_size=4
        )
        world.pool.replace([worker])
        await world.until(lambda: world.knowledge.status().ranks[0].connected)
        publisher.send_raw(wrapped(0, events(store(1, [11, 12], list(range(100, 108))))))
        await world.until_cached(8)
        assert world.knowledge.status().ranks[0].confidence == 1
        publisher.send_raw(wrapped(1, events(store(2, [13], list(range(108, 112)), parent=12))))
        await world.until_cached(12)
        publisher.send_raw(wrapped(0, events(store(1, [91], list(range(100, 104)))), publisher=8))
        await world.until_cached(4)
        assert world.knowledge.status().ranks[0].restarts == 1
    finally:
        await world.knowledge.stop()
