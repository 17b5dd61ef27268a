"""The simulated worker's events on the wire: vLLM's bytes, and a real subscriber."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest
import zmq
import zmq.asyncio

from epp.simulate.engine.cache import CacheEvent, Cleared, Namespace, Removed, Stored
from epp.simulate.engine.events import END, EventEncoder, EventsConfig, EventsForm, Publisher

STORED = Stored((0x1122334455667788, 0xFFEEDDCCBBAA9988), None, list(range(1, 9)), Namespace(), first=True)
# What vLLM 0.33.0's own classes encode for the same values.
VLLM_STORED = (
    "93cb41d954fc4020000091de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf1122334455667788"
    "cfffeeddccbbaa9988b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f"
    "73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c0a967726f"
    "75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"
)
VLLM_REMOVED = (
    "93cb41d954fc402000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1122334455667788a6"
    "6d656469756da3475055a967726f75705f6964780000"
)


@pytest.mark.parametrize(
    ("event", "expected"), [(STORED, VLLM_STORED), (Removed(0x1122334455667788), VLLM_REMOVED)], ids=str
)
def test_maps_are_byte_for_byte_what_vllm_sends(event: CacheEvent, expected: str) -> None:
    batch = EventEncoder(EventsForm.MAP, block_size=4, rank=0).batch([event], 1700000000.5)
    # msgspec writes a map of 11 keys of a struct as map16, of a dict as fixmap: the same map to any reader.
    assert msgspec.msgpack.decode(batch) == msgspec.msgpack.decode(bytes.fromhex(expected))


def test_arrays_have_the_twelve_fields_of_vllm_before_0_24() -> None:
    batch = EventEncoder(EventsForm.ARRAY, block_size=4, rank=3).batch([STORED, Cleared()], 5.0)
    ts, events, rank = msgspec.msgpack.decode(batch)
    assert (ts, rank) == (5.0, 3)
    assert events[0][:6] == ["BlockStored", list(STORED.hashes), None, STORED.tokens, 4, None]
    assert len(events[0]) == 12
    assert events[1] == ["AllBlocksCleared"]


def test_the_salt_is_named_in_a_first_block_only() -> None:
    encoder = EventEncoder(EventsForm.MAP, block_size=4, rank=0)
    spans = [Stored((1, 2), None, [1] * 8, Namespace("a", "s"), first) for first in (True, False)]
    events = msgspec.msgpack.decode(encoder.batch(spans, 0.0))[1]
    assert [event["extra_keys"] for event in events] == [[["a", "s"], ["a"]], [["a"], ["a"]]]
    assert [event["lora_name"] for event in events] == ["a", "a"]


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    with zmq.asyncio.Context() as context:
        yield context


async def test_a_subscriber_sees_live_batches_numbered_from_zero(context: zmq.asyncio.Context) -> None:
    publisher = start(EventsConfig(host="127.0.0.1", port=0, topic="kv@pod"))
    with context.socket(zmq.SUB) as subscriber:
        subscriber.connect(f"tcp://127.0.0.1:{publisher.port}")
        subscriber.subscribe("kv@")
        # A subscription takes a moment; repeat until one arrives.
        for count in itertools.count(1):
            publisher.publish([Removed(count)])
            if await subscriber.poll(20):
                break
        topic, first, batch = await subscriber.recv_multipart()
    assert topic == b"kv@pod"
    number = int.from_bytes(first, "big")
    assert msgspec.msgpack.decode(batch)[1][0]["block_hashes"] == [number + 1]
    await publisher.stop()


@pytest.mark.parametrize("frames", [3, 4])
async def test_replay_sends_what_is_kept_from_the_asked_number_and_an_end(
    context: zmq.asyncio.Context, frames: int
) -> None:
    config = EventsConfig(host="127.0.0.1", port=0, replay_port=0, replay_frames=frames, topic="t", buffer_steps=3)
    publisher = start(config)
    for i in range(5):
        publisher.publish([Removed(i)])
    with context.socket(zmq.DEALER) as client:
        client.connect(f"tcp://127.0.0.1:{publisher.replay_port}")
        await client.send_multipart([b"garbage"])
        await client.send_multipart([b"", (0).to_bytes(8, "big")])
        answers = [await asyncio.wait_for(client.recv_multipart(), 5) for _ in range(4)]
    assert [len(answer) for answer in answers] == [frames] * 4
    assert [int.from_bytes(answer[-2], "big") for answer in answers[:3]] == [2, 3, 4]
    assert answers[3][-2:] == [END, b""]
    await publisher.stop()


def start(config: EventsConfig) -> Publisher:
    publisher = Publisher(config, EventEncoder(config.form, block_size=4, rank=0))
    publisher.start()
    return publisher
