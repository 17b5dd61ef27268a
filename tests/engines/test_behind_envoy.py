"""Workers with vLLM's own cache behind a real Envoy: every request's cached tokens are what the picker predicted."""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp.simulate.child import child
from epp.simulate.envoy import RUN_HEADER, WORKER_HEADER, Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, Worker, await_line, running_picker, write_endpoints
from tests.engines.test_engines import wheel
from tests.envoy.installed import require_envoy
from tests.waiting import free_ports, until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

BLOCK_SIZE = 8
BLOCKS = 161
"""About a quarter of what the load would fill: caches are full of what others need."""
ONE_BY_ONE = 300
AT_ONCE = 24
EACH = 8


@pytest.fixture(autouse=True)
def envoy_installed() -> None:
    require_envoy()


@contextlib.contextmanager
def running_workers(root: Path, folder: Path) -> Iterator[list[Worker]]:
    """Two workers with caches of `BLOCKS`."""
    with contextlib.ExitStack() as stack:
        workers = []
        for name in ("w0", "w1"):
            ports = free_ports(2)
            log = folder / f"{name}.log"
            command = [sys.executable, "-m", "tests.engines.vllm_worker", str(root)]
            process = stack.enter_context(child([*command, *map(str, [*ports, BLOCKS, BLOCK_SIZE])], log=log))
            port = json.loads(await_line(process, log, '"port": '))["port"]
            workers.append(Worker(name=name, port=port, events_port=ports[0], replay_port=ports[1], process=process))
        yield workers


class Chain:
    """The client's side: requests through Envoy, and what both sides say meanwhile."""

    def __init__(self, session: aiohttp.ClientSession, envoy: Envoy, picker: Picker, workers: list[Worker]) -> None:
        self._session = session
        self._envoy = envoy
        self._picker = picker
        self._workers = workers
        self.served: set[str] = set()

    async def ask(self, body: dict[str, Any]) -> int:
        """Cached tokens of one request."""
        url = f"http://{self._envoy.address}/v1/completions"
        async with self._session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            assert response.headers[RUN_HEADER] == self._envoy.nonce
            self.served.add(response.headers[WORKER_HEADER])
            return (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def settled(self) -> bool:
        """Whether the picker has indexed every batch that went out."""
        ranks = {rank["endpoint"]: rank for rank in (await self.status())["kv"]["ranks"]}
        for worker in self._workers:
            published = (await self._get(worker.port, "/published"))["published"]
            rank = ranks[worker.name]
            if rank["waiting"] or (-1 if rank["sequence"] is None else rank["sequence"]) != published - 1:
                return False
        return True

    async def preempted(self) -> int:
        return sum([(await self._get(worker.port, "/published"))["preempted"] for worker in self._workers])

    async def status(self) -> Any:
        return await self._get(self._picker.admin_port, "/status")

    async def _get(self, port: int, path: str) -> Any:
        async with self._session.get(f"http://127.0.0.1:{port}{path}") as response:
            return await response.json()


@contextlib.asynccontextmanager
async def chain(root: Path, folder: Path) -> AsyncIterator[Chain]:
    settings = {
        "EPP_ENDPOINTS_FILE": str(folder / "endpoints.json"),
        "EPP_BLOCK_SIZE": str(BLOCK_SIZE),
        "EPP_ADAPTERS": "sql,law",
        "EPP_ENGINE_METRICS": "false",
    }
    with running_workers(root, folder) as workers:
        write_endpoints(workers, folder / "endpoints.json")
        with running_picker(settings, folder) as picker, running_envoy(EnvoyConfig(picker_port=picker.port)) as envoy:
            async with aiohttp.ClientSession() as session:
                yield Chain(session, envoy, picker, workers)


class Load:
    """Prompts that share beginnings, with salts and adapters of their own where events name them."""

    def __init__(self, seed: int, *, namespaces: bool) -> None:
        self._draw = random.Random(seed)
        self._namespaces = namespaces
        self._trunks = [[self._draw.randrange(50_000) for _ in range(BLOCK_SIZE * 30)] for _ in range(12)]

    def body(self) -> dict[str, Any]:
        draw = self._draw
        tokens = draw.choice(self._trunks)[: draw.randrange(BLOCK_SIZE, BLOCK_SIZE * 31)]
        tokens += [draw.randrange(50_000) for _ in range(draw.choice((0, 0, 1, draw.randrange(3 * BLOCK_SIZE))))]
        body: dict[str, Any] = {"model": "base", "prompt": tokens, "max_tokens": draw.randrange(1, 20)}
        if self._namespaces and draw.random() < 0.2:
            body["model"] = draw.choice(("sql", "law"))
        if self._namespaces and draw.random() < 0.2:
            body["cache_salt"] = draw.choice("xy")
        return body


@pytest.mark.parametrize(("version", "namespaces"), [("0.33.0", True), ("0.24.0", True), ("0.11.0", False)])
async def test_every_request_hits_what_was_predicted(version, namespaces, tmp_path):
    load = Load(seed=5, namespaces=namespaces)
    async with chain(wheel("vllm", version), tmp_path) as through:
        hits = await one_by_one(through, load, ONE_BY_ONE)
        assert hits > 10_000
        assert len(through.served) == 2
        fidelity = (await through.status())["fidelity"]
        assert (fidelity["compared"], fidelity["equal"]) == (ONE_BY_ONE, ONE_BY_ONE), fidelity

        async def client() -> None:
            for _ in range(EACH):
                await through.ask(load.body() | {"max_tokens": 60})

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))  # caches turn over between picks and prefills
        await until(through.settled)
        assert await through.preempted()
        before = (await through.status())["fidelity"]
        await one_by_one(through, load, 50)
        after = (await through.status())["fidelity"]
        assert after["equal"] - before["equal"] == after["compared"] - before["compared"] == 50, (before, after)


async def one_by_one(through: Chain, load: Load, requests: int) -> int:
    """Each request when the picker knows what the one before changed; returns the cached tokens of all."""
    hits = 0
    for _ in range(requests):
        await until(through.settled)
        hits += await through.ask(load.body())
    await until(through.settled)
    return hits
