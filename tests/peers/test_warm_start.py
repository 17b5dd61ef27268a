"""A process that starts late begins where a warm peer is, over the real line, while events wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.run_index import RunIndex
from epp.peers.addresses import Processes
from epp.peers.sharing import LoadSharing
from epp.peers.warm_start import WarmStart
from epp.scheduling.load import Load, Prefill
from epp.scheduling.rates import Rates
from epp.settings import load_settings
from tests.kvcache.conftest import publisher  # noqa: F401 - a fixture
from tests.kvcache.publisher import Publisher, batch, stored
from tests.kvcache.test_knowledge import PROMPT, TOKENS, endpoint
from tests.peers.test_sharing import KEY, replicas
from tests.waiting import until


class Late:
    """A process with an index, rates and peers."""

    def __init__(self, settings: dict[str, str], processes: Processes | None = None) -> None:
        self.pool = Pool()
        self.rates = Rates()
        self.load = Load(asyncio.get_running_loop().time, self.rates.observe)
        for part in (self.rates, self.load):
            self.pool.on_join(part.join)
        self.knowledge = KvKnowledge(pool=self.pool, index=RunIndex(PrefixKeys()))
        given = {"EPP_HOST": "127.0.0.1", **settings}
        sharing = LoadSharing.from_settings(
            load_settings(given), self.load, self.pool, processes or Processes(), CollectorRegistry()
        )
        assert sharing is not None
        self.sharing = sharing
        self.warm_start = WarmStart(sharing, self.knowledge, self.rates, max_blocks=10_000)

    def cached(self) -> list[int]:
        return self.knowledge.index.match(PROMPT).cached_tokens.tolist()


@asynccontextmanager
async def running(late: Late, *endpoints: Endpoint) -> AsyncIterator[Late]:
    late.knowledge.hold()
    await late.knowledge.start()
    late.pool.replace(endpoints)
    await late.sharing.start()
    await late.warm_start.start()
    try:
        yield late
    finally:
        await late.warm_start.stop()
        await late.sharing.stop()
        await late.knowledge.stop()


async def warm_one(late: Late, source: Publisher) -> None:
    """The first of all: nobody to ask, then eight tokens by events, and a rate."""
    await late.warm_start.run(5.0)
    assert late.warm_start.status().problem
    await until(lambda: late.knowledge.status().ranks[0].connected)
    while not late.knowledge.status().ranks[0].messages:
        source.publish(batch())
        await asyncio.sleep(0.02)
    source.publish(batch(stored([1, 2], TOKENS[:8])))
    await until(lambda: late.cached() == [8])
    for _ in range(40):
        late.rates.observe(Prefill(column=0, prefill_tokens=1000, context_tokens=1000, seconds=0.5))
    late.warm_start.warm = True


@pytest.mark.parametrize("how", ["encrypted", "ipc"])
async def test_it_knows_at_once_what_its_peer_knows(tmp_path: Path, publisher: Publisher, how: str):  # noqa: F811
    if how == "ipc":
        places = [({}, Processes(2, index, tmp_path)) for index in range(2)]
    else:
        places = [(settings, Processes()) for settings in replicas(tmp_path, (KEY, KEY))]
    worker = endpoint(publisher, 0, replay=False)
    async with running(Late(*places[0]), worker) as first:
        await warm_one(first, publisher)
        async with running(Late(*places[1]), worker) as late:
            taking = asyncio.create_task(late.warm_start.run(20.0))
            await until(lambda: late.knowledge.status().ranks[0].connected)
            publisher.publish(batch(stored([3], TOKENS[8:], parent=2)))
            await taking
            assert late.warm_start.status().problem == ""
            await until(lambda: late.cached() == [12], said=late.knowledge.status)
            column = np.array([0])
            predicted = [float(each.rates.seconds(column, np.array([1000]), 1000)[0]) for each in (first, late)]
            assert predicted[1] == pytest.approx(predicted[0])
            assert late.knowledge.index.secret == first.knowledge.index.secret
        assert first.warm_start.status().given == 1


async def test_in_plain_text_no_secret_is_given(tmp_path: Path, publisher: Publisher):  # noqa: F811
    settings = replicas(tmp_path, (None, None))
    worker = endpoint(publisher, 0, replay=False)
    async with running(Late(settings[0]), worker) as first:
        await warm_one(first, publisher)
        async with running(Late(settings[1]), worker) as late:
            await late.warm_start.run(5.0)
            assert late.warm_start.status().problem == "no peer is warm"
            assert late.knowledge.index.secret != first.knowledge.index.secret


async def test_one_that_goes_silent_costs_no_more_than_the_time_that_is_allowed(tmp_path: Path, publisher: Publisher):  # noqa: F811
    settings = replicas(tmp_path, (KEY, KEY))
    worker = endpoint(publisher, 0, replay=False)
    async with running(Late(settings[0]), worker) as first:
        await warm_one(first, publisher)
        never = repeat(b"")
        first.warm_start._giver._stock = replace(first.warm_start._giver._stock, snapshot=lambda: never)
        async with running(Late(settings[1]), worker) as late:
            await late.warm_start.run(1.5)
            assert "EPP_WARMUP_TIMEOUT_SECONDS" in late.warm_start.status().problem
            publisher.publish(batch(stored([1], TOKENS[:4])))
            await until(lambda: late.cached() == [4], said=late.knowledge.status)
