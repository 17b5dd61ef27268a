"""A thousand workers that appear at once are followed without a storm, and without holding up the event loop."""

import asyncio
import resource
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.kvcache.stream import StreamOptions
from tests.kvcache.publisher import END, batch, stored
from tests.waiting import until

ENDPOINTS = 1000
FILES = 12_000
STEPS = 40
"""Turns of the loop, at least, over which the connecting is spread."""


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < FILES:
        pytest.skip(f"only {before[1]} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], FILES), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Publishers:
    """So many publishers, each with one batch to replay; a replay ends `SECONDS` after it was asked for."""

    SECONDS = 0.02

    def __init__(self, count: int) -> None:
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 4 * count)
        self._live = [self._socket(zmq.PUB) for _ in range(count)]
        self._routers = [self._socket(zmq.ROUTER) for _ in range(count)]
        bound = "tcp://127.0.0.1"
        self.ports = [
            (live.bind_to_random_port(bound), router.bind_to_random_port(bound))
            for live, router in zip(self._live, self._routers, strict=True)
        ]
        self.replays = 0
        self.most_at_once = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        return self._context.socket(kind)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for router in self._routers:
            poller.register(router, zmq.POLLIN)
        payload = batch(stored([1, 2], list(range(8))))
        open_replays: list[tuple[float, zmq.Socket[bytes], bytes]] = []
        while not self._stop.is_set():
            for router, _ in poller.poll(5):
                client = router.recv_multipart()[0]
                router.send_multipart([client, b"", b"", bytes(8), payload])
                open_replays.append((time.monotonic() + self.SECONDS, router, client))
                self.replays += 1
            self.most_at_once = max(self.most_at_once, len(open_replays))
            while open_replays and open_replays[0][0] <= time.monotonic():
                _, router, client = open_replays.pop(0)
                router.send_multipart([client, b"", b"", END, b""])


async def test_a_thousand_workers_that_appear_at_once():
    publishers = Publishers(ENDPOINTS)
    pool = Pool()
    options = StreamOptions(replay_idle_seconds=20.0)
    knowledge = KvKnowledge(pool=pool, index=RunIndex(PrefixKeys()), options=options, block_size=4)
    await knowledge.start()
    try:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        ports = dict(enumerate(publishers.ports))
        pool.replace(
            Endpoint(name=f"w{i}", address="127.0.0.1", port=1 + i, events_port=ports[i][0], replay_port=ports[i][1])
            for i in range(ENDPOINTS)
        )
        await until(lambda: knowledge.index.entries == 2 * ENDPOINTS, seconds=120)
        counting.cancel()
        ranks = knowledge.status().ranks
        assert all(rank.complete for rank in ranks)
        assert publishers.replays == ENDPOINTS  # nobody was asked twice
        assert publishers.most_at_once < ENDPOINTS / 4  # turns go on without who is slow to answer
        assert turns > STEPS
        pool.replace([])
        assert knowledge.index.entries == 0
    finally:
        await knowledge.stop()
        publishers.close()
