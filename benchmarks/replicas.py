"""What replicas cost each other: the CPU of sharing load for each request, one and two processes, and a warm start."""

import asyncio
import contextlib
import json
import multiprocessing
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import uvloop
from prometheus_client import CollectorRegistry

from benchmarks.report import report
from benchmarks.servers import Load as ClientLoad
from benchmarks.servers import Server, Side
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.kvcache.knowledge import KvKnowledge
from epp.peers.addresses import Processes
from epp.peers.prompts import PromptExchange
from epp.peers.sharing import LoadSharing
from epp.prompts.prompt import Prompt
from epp.scheduling.load import Load, Work
from epp.settings import load_settings
from epp.simulate.envoy import EnvoyConfig, running_envoy
from epp.simulate.processes import running_picker

REQUESTS_PER_SECOND = 400
SECONDS = 6.0
PROMPT_TOKENS = 4096
ENDPOINTS = 8
ANSWER = json.dumps({"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})


def main(wanted: list[str]) -> None:
    """Print the wanted rows, all by default."""
    rows: dict[str, Callable[[str], None]] = {"replica_share": replica_share, "processes_cpu": processes}
    for name, row in rows.items():
        if not wanted or any(each.startswith(name) for each in wanted):
            row(name)


def replica_share(name: str) -> None:
    """CPU for each request of a replica that tells its load and prompts to another one, and hears as much of it."""
    alone = _picks(1)
    report(name, (_picks(2) - alone) * 1e6, "us", alone * 1e6)


def _picks(replicas: int) -> float:
    """CPU seconds for each request of the first of so many replicas, all of which have the same load."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        ours, theirs = spawn.Pipe()
        places = [Processes(replicas, i, Path(folder), bytes(32)) for i in range(replicas)]
        started = [spawn.Process(target=_serve, args=(place, theirs)) for place in places]
        for each in started:
            each.start()
        spent = [float(ours.recv()) for _ in started]
        for each in started:
            each.join()
    return sum(spent) / len(spent)


def _serve(place: Processes, told: Connection) -> None:
    told.send(uvloop.run(_run(place)))


async def _run(place: Processes) -> float:
    settings = load_settings({"EPP_KV_EVENTS": "false"})
    pool = Pool()
    load = Load(time.monotonic)
    pool.on_join(load.join)
    knowledge = KvKnowledge.from_settings(settings, pool)
    knowledge.take_secret(place.prefix_secret or bytes(32))
    prompts = PromptExchange.of(knowledge, pool, settings)
    sharing = LoadSharing.from_settings(settings, load, pool, place, CollectorRegistry(), prompts)
    assert sharing is not None
    pool.replace(Endpoint(name=f"w{i}", address=f"10.0.0.{i + 1}", port=80) for i in range(ENDPOINTS))
    if place.count > 1:
        await sharing.start()
        while not any(peer.present and peer.in_step and peer.hears_us for peer in sharing.status().peers):  # noqa: ASYNC110 - of others
            await asyncio.sleep(0.01)
    begun, cpu, count = time.monotonic(), time.process_time(), 0
    tokens = np.arange(PROMPT_TOKENS, dtype=np.uint32)
    while (now := time.monotonic()) < begun + SECONDS:
        while count < (now - begun) * REQUESTS_PER_SECOND:
            _one(load, sharing if place.count > 1 else None, Prompt(tokens=tokens + count, namespace="m"), count)
            count += 1
        await asyncio.sleep(0.002)
    spent = (time.process_time() - cpu) / count
    if place.count > 1:
        await asyncio.sleep(0.5)  # the other one may not have ended
        await sharing.stop()
    return spent


def _one(load: Load, sharing: LoadSharing | None, prompt: Prompt, number: int) -> None:
    reservation = load.reserve(number % ENDPOINTS, Work(prefill_tokens=100, context_tokens=100, prefill_seconds=0.01))
    if sharing is not None:
        sharing.group.picked(reservation.column, prompt)
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, reservation.first_token)
    loop.call_later(0.1, reservation.release)


class _Group(Server):
    """All processes of one server."""

    def cpu_seconds(self) -> float:
        """CPU time of all of them."""
        pids = [self.pid, *_children(self.pid)]
        return sum(Server(pid, None).cpu_seconds() for pid in pids)


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from _children(child)


def processes(_name: str) -> None:
    """Requests of 1 KB per second, and CPU for each without what is spent idle, with two processes; baseline: one.

    Envoy and the client take their share of the same cores, so the rate says something only with cores to spare.
    """
    load = ClientLoad(1024, 32, 4000)
    one = _throughput(1, load)
    two = _throughput(2, load)
    report("processes_cpu", two[0], "us", one[0])
    report("processes_rate", two[1], "requests/s", one[1])


def _throughput(count: int, load: ClientLoad) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name, contextlib.ExitStack() as stack:
        worker = stack.enter_context(running_envoy(EnvoyConfig(direct_answer=ANSWER))).answer_port
        settings = {
            "EPP_ENDPOINTS": f"127.0.0.1:{worker}",
            "EPP_POLICY": "round-robin",
            "EPP_KV_EVENTS": "false",
            "EPP_ENGINE_METRICS": "false",
            "EPP_TRANSPORT": "http2",
            "EPP_PROCESSES": str(count),
            "EPP_MAX_CONNECTION_STREAMS": "4",
        }
        picker = stack.enter_context(running_picker(settings, Path(name)))
        _all_ready(picker.admin_port, count)
        envoy = stack.enter_context(running_envoy(EnvoyConfig(picker_port=picker.port)))
        side = Side(_Group(picker.process.pid, picker.port), envoy, f"127.0.0.1:{worker}")
        side.run(load)
        idle = side.server.idle_share()
        begun = time.monotonic()
        cpu = side.cpu_us(load, idle)
        return cpu, load.count / (time.monotonic() - begun)


def _all_ready(admin_port: int, count: int) -> None:
    deadline = time.monotonic() + 100
    while count > 1 and time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/status", timeout=10) as answer:
            if all(each["ready"] for each in json.load(answer)["processes"]):
                return
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])
