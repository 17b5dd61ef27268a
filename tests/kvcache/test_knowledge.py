"""Knowledge of caches follows real publishers through the faults of real networks."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct
from prometheus_client import CollectorRegistry, generate_latest

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.image import RankImage
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.metrics import KvMetrics
from epp.kvcache.run_index import RunIndex
from epp.kvcache.snapshot import Decoder
from epp.kvcache.stream import StreamOptions
from epp.prompts.prompt import Prompt, TokenSource
from tests.kvcache.publisher import CLEARED, Publisher, batch, removed, stored
from tests.waiting import until

TOKENS = list(range(100, 112))
PROMPT = Prompt(tokens=np.array([*TOKENS, 1], dtype=np.uint32))


class World:
    """One pool and what is known of it."""

    def __init__(self) -> None:
        self.pool = Pool()
        options = StreamOptions(replay_idle_seconds=0.3)
        self.knowledge = KvKnowledge(pool=self.pool, index=RunIndex(PrefixKeys()), options=options)

    def follow(self, *publishers: Publisher, replay: bool = True) -> None:
        self.pool.replace(endpoint(p, i, replay=replay) for i, p in enumerate(publishers))

    def cached(self) -> list[int]:
        return self.knowledge.match(PROMPT).cached_tokens.tolist()

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, said=self.knowledge.status)

    async def until_cached(self, *tokens: int) -> None:
        await self.until(lambda: self.cached() == list(tokens))


def endpoint(publisher: Publisher, i: int, *, replay: bool = True) -> Endpoint:
    ports = {"events_port": publisher.port, "replay_port": publisher.replay_port if replay else None}
    return Endpoint(name=f"w{i}", address="127.0.0.1", port=8000 + i, **ports)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.knowledge.start()
    yield world
    await world.knowledge.stop()


async def live(world: World, publisher: Publisher, payload: bytes) -> None:
    """Publish once the subscription surely stands: repeat an empty batch until one arrives."""
    before = world.knowledge.status().ranks[0].messages
    while world.knowledge.status().ranks[0].messages == before:
        publisher.publish(batch())
        await asyncio.sleep(0.02)
    publisher.publish(payload)


async def test_events_from_before_the_subscription_come_by_replay(world, publisher):
    publisher.publish(batch(stored([1, 2], TOKENS[:8])))
    world.follow(publisher)
    await world.until_cached(8)
    assert world.knowledge.status().ranks[0].complete


async def test_a_replay_without_topic_frames_is_understood(world):
    old = Publisher(topic_in_replay=False)
    try:
        old.publish(batch(stored([1, 2], TOKENS[:8])))
        world.follow(old)
        await world.until_cached(8)
    finally:
        old.close()


async def test_live_events_change_what_is_known(world, publisher):
    world.follow(publisher)
    await live(world, publisher, batch(stored([1, 2], TOKENS[:8])))
    publisher.publish(batch(stored([3], TOKENS[8:], parent=2)))
    await world.until_cached(12)
    publisher.publish(batch(removed([3])))
    await world.until_cached(8)
    publisher.publish(batch(CLEARED))
    await world.until_cached(0)


async def test_without_replay_live_events_still_count(world, publisher):
    world.follow(publisher, replay=False)
    await live(world, publisher, batch(stored([1, 2], TOKENS[:8])))
    await world.until_cached(8)


async def test_a_gap_is_filled_by_replay(world, publisher):
    world.follow(publisher)
    await live(world, publisher, batch(stored([1], TOKENS[:4])))
    publisher.publish(batch(stored([2], TOKENS[4:8], parent=1)), lose=True)
    publisher.publish(batch(stored([3], TOKENS[8:], parent=2)))
    await world.until_cached(12)
    status = world.knowledge.status().ranks[0]
    assert status.complete
    assert status.lost == 0


async def test_a_hole_that_no_replay_fills_is_given_up(world, publisher):
    world.follow(publisher)
    await live(world, publisher, batch(stored([1], TOKENS[:4])))
    publisher.publish(batch(), lose=True, keep=False)
    publisher.publish(batch(stored([2], TOKENS[4:8], parent=1)))
    await world.until_cached(8)
    status = world.knowledge.status().ranks[0]
    assert status.lost == 1
    assert not status.complete


async def test_a_replay_that_nobody_answers_does_not_hold_up_live_events(world, publisher):
    publisher.answer = False
    world.follow(publisher)
    await live(world, publisher, batch(stored([1], TOKENS[:4])))
    publisher.publish(batch(), lose=True)
    publisher.publish(batch(stored([2], TOKENS[4:8], parent=1)))
    await world.until_cached(8)
    assert world.knowledge.status().ranks[0].replays_failed


async def test_a_lost_end_marker_is_overcome(world, publisher):
    publisher.end_marker = False
    publisher.publish(batch(stored([1, 2], TOKENS[:8])))
    world.follow(publisher)
    await world.until_cached(8)
    publisher.publish(batch(stored([3], TOKENS[8:], parent=2)))
    await world.until_cached(12)


async def test_a_restarted_engine_holds_nothing(world):
    first = Publisher()
    ports = first.port, first.replay_port
    world.follow(first)
    await live(world, first, batch(stored([1, 2], TOKENS[:8])))
    await world.until_cached(8)
    first.close()
    second = Publisher(ports=ports)
    try:
        await world.until_cached(0)  # on reconnecting, before any new event
        second.publish(batch(stored([7], TOKENS[:4])))
        await world.until_cached(4)
        assert world.knowledge.status().ranks[0].restarts
    finally:
        second.close()


async def test_a_restart_that_has_passed_our_number_is_no_gap(world):
    first = Publisher()
    ports = first.port, first.replay_port
    world.follow(first)
    await live(world, first, batch(stored([1, 2], TOKENS[:8])))
    await world.until_cached(8)
    numbers = first.sequence
    first.close()
    second = Publisher(ports=ports)
    try:
        for _ in range(numbers + 5):
            second.publish(batch())
        second.publish(batch(stored([7], TOKENS[:4])))
        await world.until_cached(4)
    finally:
        second.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff\x00garbage"],
        [b"", b"12345678"],
        [b"", b"short", b"x"],
        [b"", (2**64 - 2).to_bytes(8, "big"), b"\xc1"],
        [b"", b"\x00" * 8, b"\xc1\xc1"],
        [b"", b"\x00" * 8, b"\xdd\xff\xff\xff\xff"],
        [b"a", b"b", b"c", b"d", b"e"],
    ],
)
async def test_wrong_bytes_stop_nothing(world, publisher, frames):
    world.follow(publisher)
    await live(world, publisher, batch(stored([1], TOKENS[:4])))
    publisher.send_raw(frames)
    publisher.publish(batch(stored([2], TOKENS[4:8], parent=1)))
    await world.until(lambda: world.cached()[0] >= 4)
    publisher.publish(batch(stored([1, 2, 3], TOKENS)))
    await world.until_cached(12)


async def test_an_endpoint_that_leaves_takes_its_blocks_along(world, publisher):
    publisher.publish(batch(stored([1, 2], TOKENS[:8])))
    world.follow(publisher)
    await world.until_cached(8)
    world.pool.replace([])
    assert world.cached() == []
    other = replace(endpoint(publisher, 0), uid="another pod")
    publisher.publish(batch(CLEARED))
    world.pool.replace([other])
    await world.until(lambda: world.knowledge.status().ranks[0].cleared == 1)
    assert world.cached() == [0]


async def test_an_endpoint_holds_what_its_best_rank_holds(world):
    first, second = neighbours()
    try:
        first.publish(batch(stored([1], TOKENS[:4])))
        second.publish(batch(stored([1, 2], TOKENS[:8])))
        world.pool.replace([replace(endpoint(first, 0), event_ranks=2)])
        ranks = [("w0", 0, 1), ("w0", 1, 2)]
        await world.until(lambda: [(r.endpoint, r.rank, r.blocks) for r in world.knowledge.status().ranks] == ranks)
        assert world.cached() == [8]
        second.publish(batch(CLEARED))
        await world.until_cached(4)
        world.pool.replace([])
        assert world.knowledge.status().ranks == ()
    finally:
        first.close()
        second.close()


def neighbours() -> tuple[Publisher, Publisher]:
    """Two publishers on consecutive ports."""
    live, replay = two_free_ports(), two_free_ports()
    return Publisher(ports=(live, replay)), Publisher(ports=(live + 1, replay + 1))


def two_free_ports() -> int:
    """The first of two consecutive ports that nobody has."""
    while True:
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError, OverflowError):
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", one.getsockname()[1] + 1))
            return one.getsockname()[1]


async def test_totals_do_not_go_back_when_an_endpoint_leaves(world, publisher):
    registry = CollectorRegistry()
    KvMetrics(world.knowledge, registry)
    publisher.publish(batch(stored([1, 2], TOKENS[:8]), {"type": "NeverHeardOf"}))
    world.follow(publisher)
    await world.until_cached(8)
    world.pool.replace([])
    assert registry.get_sample_value("epp_kv_streams") == 0
    assert registry.get_sample_value("epp_kv_blocks_stored_total") == 2
    assert registry.get_sample_value("epp_kv_events_skipped_total", {"reason": "unknown_event"}) == 1


async def test_endpoints_are_told_apart(world, publisher):
    other = Publisher()
    try:
        publisher.publish(batch(stored([1, 2], TOKENS[:8])))
        other.publish(batch(stored([1, 2, 3], TOKENS)))
        world.follow(publisher, other)
        await world.until_cached(8, 12)
    finally:
        other.close()


async def test_a_picker_that_starts_late_without_replay_learns_from_reports(world, publisher):
    world.follow(publisher, replay=False)
    await live(world, publisher, batch(stored([12, 13], [*TOKENS[8:], 1, 7, 7, 7], parent=11)))
    await world.until(lambda: world.knowledge.status().ranks[0].parked == 2)
    status = world.knowledge.status().ranks[0]
    assert status.confidence < 0.1
    assert "before we came" in status.why
    world.knowledge.reported(0, endpoint(publisher, 0, replay=False), PROMPT, 8)
    assert world.cached() == [12]
    assert world.knowledge.status().ranks[0].adopted == 1


async def test_equal_prompts_find_each_other_before_the_event_comes(world, publisher):
    world.follow(publisher)
    await live(world, publisher, batch(stored([90], [0, 0, 0, 0])))
    await world.until(lambda: world.knowledge.status().ranks[0].blocks == 1)
    world.knowledge.picked(0, PROMPT)
    assert world.cached() == [12]
    publisher.publish(batch(stored([1, 2, 3], TOKENS)))
    await world.until(lambda: world.knowledge.status().ranks[0].stored == 4)
    assert world.cached() == [12]
    publisher.publish(batch(removed([3])))
    await world.until_cached(8)
    assert world.knowledge.status().ranks[0].confidence == 1
    await world.until(lambda: world.knowledge.confidence(np.array([0, 5])).tolist() == [1.0, 0.0])  # 5 is not followed


async def test_prompts_compared_as_text_outlive_the_wait_for_events_that_cannot_come(publisher):
    now = 0.0
    index = RunIndex(PrefixKeys())
    pool = Pool()
    knowledge = KvKnowledge(pool=pool, index=index, block_size=4, clock=lambda: now)
    await knowledge.start()
    try:
        pool.replace([endpoint(publisher, 0)])
        as_text = replace_struct(PROMPT, namespace="text ", source=TokenSource.TEXT)
        knowledge.picked(0, as_text)
        knowledge.picked(0, PROMPT)
        now = 120.0
        await until(lambda: index.match(PROMPT).cached_tokens.tolist() == [0])
        assert index.match(as_text).cached_tokens.tolist() == [12]
        knowledge.reported(0, endpoint(publisher, 0), as_text, 0)
        assert index.match(as_text).cached_tokens.tolist() == [12]
        now = 1000.0
        await until(lambda: index.match(as_text).cached_tokens.tolist() == [0])
    finally:
        await knowledge.stop()


async def test_without_events_our_own_picks_are_what_is_known():
    pool = Pool()
    knowledge = KvKnowledge(pool=pool, index=RunIndex(PrefixKeys()), events=False, block_size=4)
    await knowledge.start()
    try:
        worker = Endpoint(name="w", address="127.0.0.1", port=1, events_port=9)
        pool.replace([worker])
        knowledge.picked(0, PROMPT)
        assert knowledge.index.match(PROMPT).cached_tokens.tolist() == [12]
        assert not knowledge.status().ranks[0].connected
        pool.replace([])
        assert knowledge.index.match(PROMPT).cached_tokens.tolist() == []
    finally:
        await knowledge.stop()


async def test_operators_see_the_streams_in_metrics(world, publisher):
    registry = CollectorRegistry()
    KvMetrics(world.knowledge, registry)
    publisher.publish(batch(stored([1, 2], TOKENS[:8]), {"type": "FutureEvent"}))
    world.follow(publisher)
    await world.until_cached(8)
    text = generate_latest(registry).decode()
    assert "epp_kv_blocks 2.0" in text
    assert "epp_kv_streams 1.0" in text
    assert 'epp_kv_events_skipped_total{reason="unknown_event"} 1.0' in text


async def images_of(world: World) -> list[RankImage]:
    decoder = Decoder(world.knowledge.index.secret_id, max_blocks=1000)
    images = []
    for chunk in world.knowledge.snapshot():
        images += [image for image in decoder.feed(chunk) if image is not None]
        await asyncio.sleep(0)
    assert decoder.finished
    return images


@pytest.mark.parametrize("replay", [True, False])
async def test_a_picker_begins_with_what_a_peer_knows(world, publisher, replay):
    world.follow(publisher, replay=replay)
    await live(world, publisher, batch(stored([1, 2], TOKENS[:8])))
    await world.until_cached(8)
    publisher.kept = {seq: payload for seq, payload in publisher.kept.items() if seq == publisher.sequence - 1}
    other = World()
    assert other.knowledge.take_secret(world.knowledge.index.secret)
    other.knowledge.hold()
    await other.knowledge.start()
    try:
        other.follow(publisher, replay=replay)
        await other.until(lambda: other.knowledge.status().ranks[0].connected)
        other.knowledge.offer(await images_of(world))
        publisher.publish(batch(stored([3], TOKENS[8:], parent=2)))
        other.knowledge.release()
        await other.until_cached(12)
        rank = other.knowledge.status().ranks[0]
        assert (rank.filled, rank.stored) == (1, 1)
    finally:
        await other.knowledge.stop()


async def test_what_a_peer_knows_of_a_former_process_is_refused(world, publisher):
    world.follow(publisher)
    await live(world, publisher, batch(stored([1, 2], TOKENS[:8])))
    await world.until_cached(8)
    images = await images_of(world)
    ports = publisher.port, publisher.replay_port
    numbers = publisher.sequence
    publisher.close()
    second = Publisher(ports=ports)
    other = World()
    await other.knowledge.start()
    try:
        for _ in range(numbers + 2):
            second.publish(batch())
        second.publish(batch(stored([7], TOKENS[:4])))
        other.knowledge.take_secret(world.knowledge.index.secret)
        other.knowledge.offer(images)
        other.follow(second)
        await other.until_cached(4)
        assert other.knowledge.status().ranks[0].refused == 1
    finally:
        await other.knowledge.stop()
        second.close()
