"""ext_proc servers under load: each behind an Envoy of its own, its CPU read from /proc."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.settings import BodyMode
from epp.simulate.child import child
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import await_line, running_picker

NOOP = (sys.executable, "-m", "benchmarks.noop_ext_proc")


@dataclass(frozen=True, slots=True)
class Server:
    """One ext_proc server under test; port None: Envoy asks nobody."""

    pid: int
    port: int | None
    tls: bool = False

    def cpu_seconds(self) -> float:
        """CPU time of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def idle_share(self, seconds: float = 3.0) -> float:
        """Share of a core that it takes without any request."""
        before = self.cpu_seconds()
        time.sleep(seconds)
        return (self.cpu_seconds() - before) / seconds


@dataclass(frozen=True, slots=True)
class Load:
    """What the client does in one measurement."""

    size: int
    connections: int
    count: int
    path: str = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Side:
    """One server behind its own Envoy."""

    server: Server
    envoy: Envoy
    destination: str

    def run(self, load: Load) -> dict[str, float]:
        """Run the client; its percentiles in seconds."""
        # A picker that decides nothing lets this destination stand; ours overwrites it with the same.
        command = [sys.executable, "-m", "benchmarks.load_client", "--destination", self.destination]
        command += ["--port", str(self.envoy.port), "--size", str(load.size), "--path", load.path]
        command += ["--connections", str(load.connections), "--count", str(load.count)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def cpu_us(self, load: Load, idle_share: float = 0.0) -> float:
        """CPU microseconds of the server for each request, without what it takes in that time when idle."""
        before, begin = self.server.cpu_seconds(), time.monotonic()
        self.run(load)
        idle = idle_share * (time.monotonic() - begin)
        return (self.server.cpu_seconds() - before - idle) * 1e6 / load.count


@contextlib.contextmanager
def sides(servers: Sequence[Server], destination: str, response_body: BodyMode) -> Iterator[list[Side]]:
    """An Envoy before each server."""
    with contextlib.ExitStack() as stack:
        configs = [
            EnvoyConfig(picker_port=server.port, picker_tls=server.tls, response_body=response_body)
            for server in servers
        ]
        envoys = [stack.enter_context(running_envoy(config)) for config in configs]
        yield [Side(server, envoy, destination) for server, envoy in zip(servers, envoys, strict=True)]


@contextlib.contextmanager
def noop_server(folder: Path) -> Iterator[Server]:
    """The baseline."""
    with listening(NOOP, folder / "noop.log") as (pid, told):
        yield Server(pid, told["port"])


@contextlib.contextmanager
def our_server(folder: Path, entries: Sequence[object], settings: dict[str, str]) -> Iterator[Server]:
    """`epp serve` with those endpoints; its files go to `folder`, which is made when missing."""
    folder.mkdir(exist_ok=True)
    endpoints = folder / "endpoints.json"
    endpoints.write_text(json.dumps({"endpoints": entries}))
    with running_picker({"EPP_ENDPOINTS_FILE": str(endpoints), **settings}, folder) as picker:
        yield Server(picker.process.pid, picker.port, settings.get("EPP_SECURE_SERVING") == "true")


@contextlib.contextmanager
def listening(command: Sequence[str], log: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """A process of ours that prints a JSON line with its port when it listens; yields its pid and that line."""
    log.unlink(missing_ok=True)
    with child(command, log=log) as process:
        yield process.pid, json.loads(await_line(process, log, '"port": '))
