"""A connection whose other side vanished without a word is noticed, and what was missed meanwhile is replayed."""

import asyncio
import contextlib
from dataclasses import replace

from epp.endpoints.pool import Pool
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.kvcache.stream import StreamOptions
from tests.kvcache.publisher import Publisher, batch, stored
from tests.kvcache.test_knowledge import TOKENS, World, endpoint


class Wire:
    """Passes bytes on until it is cut: then the connections of that time stay open, and nothing comes through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection, whole."""
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, other_writer]
        for source, sink in ((reader, other_writer), (other_reader, writer)):
            self._tasks.append(asyncio.create_task(self._pass_on(source, sink)))

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def close(self) -> None:
        self.cut()
        for writer in self._writers:
            writer.close()

    @staticmethod
    async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)


async def test_a_connection_that_fell_silent_is_replaced_and_nothing_is_lost(publisher: Publisher):
    world = World()
    world.pool = Pool()
    options = StreamOptions(heartbeat_seconds=0.1, silent_seconds=0.4, replay_idle_seconds=5.0)
    world.knowledge = KvKnowledge(pool=world.pool, index=RunIndex(PrefixKeys()), options=options)
    await world.knowledge.start()
    wire = Wire(publisher.port)
    server = await asyncio.start_server(wire.join, "127.0.0.1", 0)
    try:
        publisher.publish(batch(stored([1], TOKENS[:4])))
        port = server.sockets[0].getsockname()[1]
        world.pool.replace([replace(endpoint(publisher, 0), events_port=port)])
        await world.until_cached(4)
        wire.cut()
        publisher.publish(batch(stored([2], TOKENS[4:8], parent=1)))
        await world.until_cached(8)
        rank = world.knowledge.status().ranks[0]
        assert (rank.lost, rank.restarts, rank.complete) == (0, 0, True)
    finally:
        await world.knowledge.stop()
        wire.close()
        server.close()
