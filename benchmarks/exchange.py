"""What one exchange costs: added latency and CPU, our server beside the no-op in alternating rounds.

The picker runs the policy `round-robin` without a tokenizer: nothing of what it costs is understanding a prompt. The
same Envoy configuration stands before each server; a client of its own process puts on the load; CPU is that of the
server's process, all threads. Rows that end in `_http2` run our server on the transport of that name; the baseline
stays the no-op on grpcio. In rows with `_tls` our server speaks TLS with a certificate of its own; the no-op does not.
"""

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import report
from benchmarks.servers import Load, Server, Side, listening, noop_server, our_server, sides
from epp.settings import BodyMode
from epp.simulate.envoy import EnvoyConfig, running_envoy

ROUNDS = 5
WARM_UP = 300
STREAMS = 64
"""Token streams at once."""
STREAM_TOKENS = 100
TOKEN_MS = 20
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
ANSWER = json.dumps({"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
CHUNK_WORKER = (sys.executable, "-m", "benchmarks.chunk_worker")


@dataclass(frozen=True, slots=True)
class Bench:
    """Our server and the no-op, with one worker behind both."""

    ours: Server
    noop: Server
    destination: str

    def latency(self, name: str, size: int) -> None:
        """Added p50 of one connection, over the same Envoy that asks nobody."""
        servers = (self.ours, self.noop, Server(self.ours.pid, None))
        added: list[list[float]] = []
        with sides(servers, self.destination, DUPLEX) as (ours, noop, nobody):
            for side in (ours, noop, nobody):
                side.run(Load(size, 1, WARM_UP))
            for _ in range(ROUNDS):
                direct = nobody.run(Load(size, 1, 300))["p50"]
                added.append([(side.run(Load(size, 1, 300))["p50"] - direct) * 1000 for side in (ours, noop)])
        value, baseline = (statistics.median(column) for column in zip(*added, strict=True))
        report(name, value, "ms", baseline)

    def cpu(self, name: str, load: Load, response_body: BodyMode) -> None:
        """CPU per request, without what our server takes in that time when nobody asks: that is the row `idle_100`."""
        idle = self.ours.idle_share()
        with sides((self.ours, self.noop), self.destination, response_body) as (ours, noop):
            _report_paired(name, ours, noop, lambda side: side.cpu_us(load, idle if side is ours else 0.0))

    def chunk(self, name: str) -> None:
        """CPU per response chunk: what 200 chunks cost more than 20 do."""

        def per_chunk(side: Side) -> float:
            few, many = (side.cpu_us(Load(200, 8, 24, f"/{chunks}")) for chunks in (20, 200))
            return (many - few) / 180

        with sides((self.ours, self.noop), self.destination, DUPLEX) as (ours, noop):
            _report_paired(name, ours, noop, per_chunk)

    def streams(self, name: str) -> None:
        """Token streams at the pace of a usual engine that one core carries at once, each a whole exchange."""
        load = Load(200, STREAMS, STREAMS, f"/{STREAM_TOKENS}/{TOKEN_MS}")

        def carried(side: Side) -> float:
            return STREAM_TOKENS * TOKEN_MS * 1000 / side.cpu_us(load)

        with sides((self.ours, self.noop), self.destination, DUPLEX) as (ours, noop):
            _report_paired(name, ours, noop, carried, unit="streams")


def paired(ours: Side, noop: Side, measure: Callable[[Side], float], rounds: int = ROUNDS) -> list[tuple[float, float]]:
    """Measure both sides in turn, the first one changing from round to round; (ours, no-op) of each round."""
    for side in (ours, noop):
        measure(side)
    results = []
    for i in range(rounds):
        if i % 2:
            results.append((measure(ours), measure(noop)))
        else:
            baseline = measure(noop)
            results.append((measure(ours), baseline))
    return results


def _report_paired(name: str, ours: Side, noop: Side, measure: Callable[[Side], float], unit: str = "us") -> None:
    """The ratio is the median of those of the rounds."""
    results = paired(ours, noop, measure)
    baseline = statistics.median(noop_us for _, noop_us in results)
    report(name, statistics.median(us / noop_us for us, noop_us in results) * baseline, unit, baseline)


EXCHANGES: dict[str, Callable[[Bench, str], None]] = {
    "added_latency_1kb": lambda bench, name: bench.latency(name, 1024),
    "added_latency_100kb": lambda bench, name: bench.latency(name, 100 * 1024),
    "cpu_exchange_1kb_duplex": lambda bench, name: bench.cpu(name, Load(1024, 16, 1000), DUPLEX),
    "cpu_exchange_1kb_none": lambda bench, name: bench.cpu(name, Load(1024, 16, 1000), BodyMode.NONE),
    "cpu_exchange_220kb_duplex": lambda bench, name: bench.cpu(name, Load(220_000, 16, 300), DUPLEX),
    "cpu_exchange_220kb_none": lambda bench, name: bench.cpu(name, Load(220_000, 16, 300), BodyMode.NONE),
}
CHUNKS: dict[str, Callable[[Bench, str], None]] = {
    "cpu_chunk": lambda bench, name: bench.chunk(name),
    "streams_per_core": lambda bench, name: bench.streams(name),
}


OVER_TLS = ("cpu_exchange_1kb_duplex", "cpu_chunk")


def main(wanted: list[str]) -> None:
    """Print the wanted rows, all by default."""
    for transport, carrier in (("grpcio", ""), ("http2", "_http2")):
        for rows in (EXCHANGES, CHUNKS):
            for tls in (False, True):
                names = {name + ("_tls" if tls else "") + carrier: name for name in rows if not tls or name in OVER_TLS}
                chosen = {name: rows[row] for name, row in names.items() if not wanted or name in wanted}
                if chosen:
                    _run(chosen, transport, chunks=rows is CHUNKS, tls=tls)


def _run(rows: dict[str, Callable[[Bench, str], None]], transport: str, *, chunks: bool, tls: bool) -> None:
    settings = {
        "EPP_POLICY": "round-robin",
        "EPP_KV_EVENTS": "false",
        "EPP_TRANSPORT": transport,
        "EPP_SECURE_SERVING": str(tls).lower(),
    }
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if chunks:
            worker_port = stack.enter_context(listening(CHUNK_WORKER, folder / "worker.log"))[1]["port"]
        else:
            worker_port = stack.enter_context(running_envoy(EnvoyConfig(direct_answer=ANSWER))).answer_port or 0
        entry = {"name": "w", "address": "127.0.0.1", "ports": [worker_port]}
        ours = stack.enter_context(our_server(folder, [entry], settings))
        bench = Bench(ours, stack.enter_context(noop_server(folder)), f"127.0.0.1:{worker_port}")
        for row_name, row in rows.items():
            row(bench, row_name)


if __name__ == "__main__":
    main(sys.argv[1:])
