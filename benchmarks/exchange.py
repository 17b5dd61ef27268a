"""What one exchange costs: added latency and CPU, our server beside the no-op in alternating rounds.

The picker runs the policy `round-robin` without a tokenizer: nothing of what it costs is understanding a prompt. The
same Envoy configuration stands before each server; a client of its own process puts on the load; CPU is that of the
server's process, all threads, from /proc. EPP_TRANSPORT says which carrier ours uses.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import report
from epp.settings import BodyMode
from epp.simulate.child import child
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import await_line, running_picker

ROUNDS = 5
WARM_UP = 300
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
ANSWER = json.dumps({"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})


@dataclass(frozen=True, slots=True)
class Server:
    """One ext_proc server under test; port None: Envoy asks nobody."""

    pid: int
    port: int | None

    def cpu_seconds(self) -> float:
        """CPU time of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


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
    worker_port: int

    def run(self, load: Load) -> dict[str, float]:
        """Run the client; its percentiles in seconds."""
        # A picker that decides nothing lets this destination stand; ours overwrites it with the same.
        command = [sys.executable, "-m", "benchmarks.load_client", "--destination", f"127.0.0.1:{self.worker_port}"]
        command += ["--port", str(self.envoy.port), "--size", str(load.size), "--path", load.path]
        command += ["--connections", str(load.connections), "--count", str(load.count)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def cpu_us(self, load: Load) -> float:
        """CPU microseconds of the server for each request."""
        before = self.server.cpu_seconds()
        self.run(load)
        return (self.server.cpu_seconds() - before) * 1e6 / load.count


@dataclass(frozen=True, slots=True)
class Bench:
    """Our server and the no-op, with one worker behind both."""

    ours: Server
    noop: Server
    worker_port: int

    @contextlib.contextmanager
    def sides(self, *servers: Server, response_body: BodyMode) -> Iterator[list[Side]]:
        """An Envoy before each server."""
        with contextlib.ExitStack() as stack:
            configs = [EnvoyConfig(picker_port=server.port, response_body=response_body) for server in servers]
            envoys = [stack.enter_context(running_envoy(config)) for config in configs]
            yield [Side(server, envoy, self.worker_port) for server, envoy in zip(servers, envoys, strict=True)]

    def latency(self, name: str, size: int) -> None:
        """Added p50 of one connection, over the same Envoy that asks nobody."""
        nobody = Server(self.ours.pid, None)
        added: list[list[float]] = []
        with self.sides(self.ours, self.noop, nobody, response_body=DUPLEX) as sides:
            for side in sides:
                side.run(Load(size, 1, WARM_UP))
            for _ in range(ROUNDS):
                *asked, direct = (side.run(Load(size, 1, 300))["p50"] for side in sides)
                added.append([(p50 - direct) * 1000 for p50 in asked])
        ours, noop = (statistics.median(column) for column in zip(*added, strict=True))
        report(name, ours, "ms", noop)

    def cpu(self, name: str, load: Load, response_body: BodyMode) -> None:
        """CPU per request."""
        with self.sides(self.ours, self.noop, response_body=response_body) as sides:
            _paired(name, sides, lambda side: side.cpu_us(load))

    def chunk(self, name: str) -> None:
        """CPU per response chunk: what 200 chunks cost more than 20 do."""

        def per_chunk(side: Side) -> float:
            few, many = (side.cpu_us(Load(200, 8, 24, f"/{chunks}")) for chunks in (20, 200))
            return (many - few) / 180

        with self.sides(self.ours, self.noop, response_body=DUPLEX) as sides:
            _paired(name, sides, per_chunk)


def _paired(name: str, sides: list[Side], measure: Callable[[Side], float]) -> None:
    """Alternate between the two sides; the ratio is the median of those of paired rounds."""
    ours, noop = sides
    for side in sides:
        measure(side)
    rounds = []
    for i in range(ROUNDS):
        if i % 2:
            rounds.append((measure(ours), measure(noop)))
        else:
            baseline = measure(noop)
            rounds.append((measure(ours), baseline))
    baseline = statistics.median(baseline for _, baseline in rounds)
    report(name, statistics.median(value / baseline for value, baseline in rounds) * baseline, "us", baseline)


@contextlib.contextmanager
def running_bench(folder: Path, worker_port: int) -> Iterator[Bench]:
    """Both servers; ours knows one endpoint."""
    endpoints = folder / "endpoints.json"
    endpoints.write_text(json.dumps({"endpoints": [{"name": "w", "address": "127.0.0.1", "ports": [worker_port]}]}))
    settings = {"EPP_ENDPOINTS_FILE": str(endpoints), "EPP_POLICY": "round-robin", "EPP_KV_EVENTS": "false"}
    settings |= {name: os.environ[name] for name in ("EPP_TRANSPORT",) if name in os.environ}
    with (
        running_picker(settings, folder) as picker,
        _listening([sys.executable, "-m", "benchmarks.noop_ext_proc"], folder / "noop.log") as (pid, port),
    ):
        yield Bench(Server(picker.process.pid, picker.port), Server(pid, port), worker_port)


@contextlib.contextmanager
def _listening(command: list[str], log: Path) -> Iterator[tuple[int, int]]:
    """A process that prints its port; yields its pid and the port."""
    log.unlink(missing_ok=True)
    with child(command, log=log) as process:
        yield process.pid, json.loads(await_line(process, log, '"port": '))["port"]


ROWS: dict[str, Callable[[Bench, str], None]] = {
    "added_latency_1kb": lambda bench, name: bench.latency(name, 1024),
    "added_latency_100kb": lambda bench, name: bench.latency(name, 100 * 1024),
    "cpu_exchange_1kb_duplex": lambda bench, name: bench.cpu(name, Load(1024, 16, 1000), DUPLEX),
    "cpu_exchange_1kb_none": lambda bench, name: bench.cpu(name, Load(1024, 16, 1000), BodyMode.NONE),
    "cpu_exchange_220kb_duplex": lambda bench, name: bench.cpu(name, Load(220_000, 16, 300), DUPLEX),
    "cpu_exchange_220kb_none": lambda bench, name: bench.cpu(name, Load(220_000, 16, 300), BodyMode.NONE),
}


def main(wanted: list[str]) -> None:
    """Print the wanted rows, all by default."""
    rows = {name: row for name, row in ROWS.items() if not wanted or name in wanted}
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if rows:
            worker = stack.enter_context(running_envoy(EnvoyConfig(direct_answer=ANSWER)))
            bench = stack.enter_context(running_bench(folder, worker.answer_port or 0))
            for row_name, row in rows.items():
                row(bench, row_name)
        if not wanted or "cpu_chunk" in wanted:
            command = [sys.executable, "-m", "benchmarks.chunk_worker"]
            _, port = stack.enter_context(_listening(command, folder / "worker.log"))
            stack.enter_context(running_bench(folder, port)).chunk("cpu_chunk")


if __name__ == "__main__":
    main(sys.argv[1:])
