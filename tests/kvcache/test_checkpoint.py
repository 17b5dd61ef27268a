"""A restarted picker begins with the file that the former one left, where workers prove that it still holds."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.kvcache.checkpoint import Checkpoint
from tests.kvcache.publisher import Publisher, batch, stored
from tests.kvcache.test_knowledge import TOKENS, World, live

FILE = "kv-index.snapshot"


def checkpoint(world: World, directory: Path, interval: float = 3600.0) -> Checkpoint:
    return Checkpoint(world.knowledge, directory, interval_seconds=interval, max_blocks=1000)


async def leave(directory: Path, publisher: Publisher) -> None:
    """A picker that knows 8 tokens, and writes them when it stops."""
    world = World()
    await world.knowledge.start()
    file = checkpoint(world, directory)
    await file.start()
    try:
        world.follow(publisher)
        await live(world, publisher, batch(stored([1, 2], TOKENS[:8])))
        await world.until_cached(8)
        await file.stop()
        assert file.status().written == 1
    finally:
        await world.knowledge.stop()


async def begin(directory: Path, publisher: Publisher, *, expected: int, replay: bool = True) -> Checkpoint:
    """Another picker, until it knows `expected` tokens of the worker."""
    world = World()
    await world.knowledge.start()
    file = checkpoint(world, directory)
    try:
        await file.start()
        world.follow(publisher, replay=replay)
        await world.until(lambda: world.knowledge.status().ranks[0].connected)
        await world.until_cached(expected)
        return file
    finally:
        await file.stop()
        await world.knowledge.stop()


def forget_all_but_the_last(publisher: Publisher) -> None:
    last = publisher.sequence - 1
    publisher.kept = {last: publisher.kept[last]}


async def test_a_picker_begins_where_the_former_one_ended(publisher, tmp_path):
    await leave(tmp_path, publisher)
    forget_all_but_the_last(publisher)
    publisher.publish(batch(stored([3], TOKENS[8:], parent=2)))
    file = await begin(tmp_path, publisher, expected=12)
    assert file.status().ranks_found == 1
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


async def test_of_a_worker_that_was_restarted_nothing_is_taken(tmp_path):
    first = Publisher()
    await leave(tmp_path, first)
    ports, numbers = (first.port, first.replay_port), first.sequence
    first.close()
    second = Publisher(ports=ports)
    try:
        for _ in range(numbers + 3):
            second.publish(batch())
        second.publish(batch(stored([9], TOKENS[:4])))
        await begin(tmp_path, second, expected=4)
    finally:
        second.close()


async def test_without_replay_nothing_is_taken(publisher, tmp_path):
    await leave(tmp_path, publisher)
    await begin(tmp_path, publisher, expected=0, replay=False)


@pytest.mark.parametrize("harm", [lambda data: data[:-1], lambda data: b"", lambda data: b"x" * 32 + data[32:]])
async def test_a_harmed_file_costs_a_warning_and_is_replaced(publisher, tmp_path, harm):
    await leave(tmp_path, publisher)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(harm(whole))
    with capture_logs() as logs:
        await begin(tmp_path, publisher, expected=8)
    assert [log["log_level"] for log in logs if "cannot be used" in log["event"]] == ["warning"]
    assert (tmp_path / FILE).stat().st_size == len(whole)


async def test_a_directory_that_cannot_be_written_is_told_once(publisher, tmp_path):
    (tmp_path / "file").write_text("")
    world = World()
    await world.knowledge.start()
    file = checkpoint(world, tmp_path / "file", interval=0.02)
    try:
        with capture_logs() as logs:
            await file.start()
            await world.until(lambda: file.status().failed > 2)
        assert len([log for log in logs if "could not be written" in log["event"]]) == 1
    finally:
        await file.stop()
        await world.knowledge.stop()


async def test_it_is_written_from_time_to_time(publisher, tmp_path):
    world = World()
    await world.knowledge.start()
    file = checkpoint(world, tmp_path, interval=0.02)
    await file.start()
    try:
        await world.until(lambda: file.status().written > 2)
        await asyncio.sleep(0)
        assert file.status().bytes == (tmp_path / FILE).stat().st_size
    finally:
        await file.stop()
        await world.knowledge.stop()
