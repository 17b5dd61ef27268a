"""What a KV-aware pick among 64 workers adds to the no-op exchange, prompt reading apart.

The default policy with a real tokenizer, events of 64 workers in the index, response bodies not shown (NONE). Reading
the prompt (template, token cache, encoding) is measured by itself in this process and is a row of its own, which the
`cpu_kv_*` rows do not contain. Rows that end in `_http2` run our server on that transport; the no-op stays on grpcio.
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.exchange import paired
from benchmarks.load_client import chat_body
from benchmarks.report import report
from benchmarks.servers import Load, Side, listening, noop_server, our_server, sides
from epp.prompts.reader import PromptReader
from epp.settings import BodyMode, Settings
from epp.simulate.demo.chain import model_folder

SIZES = {"1kb": (1024, 1000), "20kb": (20_000, 600), "220kb": (220_000, 200)}
"""Name -> bytes of the body, requests of one round."""
SETTINGS = {"EPP_ENGINE_METRICS": "false"}
READS = 30


def main(wanted: list[str]) -> None:
    """Print the wanted rows, all by default."""

    def is_wanted(row: str) -> bool:
        return not wanted or row in wanted

    with tempfile.TemporaryDirectory(prefix="epp-bench-") as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        model = model_folder(folder)
        world = (sys.executable, "-m", "benchmarks.kv_world", str(model), "220000")
        _, told = stack.enter_context(listening(world, folder / "world.log"))
        noop = stack.enter_context(noop_server(folder))
        first = told["entries"][0]
        destination = f"{first['address']}:{first['ports'][0]}"
        reads = {name: asyncio.run(_read_us(model, size)) for name, (size, _) in SIZES.items()}
        for name, us in reads.items():
            if is_wanted(f"cpu_kv_read_{name}"):
                report(f"cpu_kv_read_{name}", us, "us")
        for transport, suffix in (("grpcio", ""), ("http2", "_http2")):
            names = {f"cpu_kv_{name}{suffix}": name for name in SIZES if is_wanted(f"cpu_kv_{name}{suffix}")}
            if not names:
                continue
            settings = {"EPP_TOKENIZER_PATH": str(model), "EPP_TRANSPORT": transport, **SETTINGS}
            with our_server(folder / transport, told["entries"], settings) as ours:
                for row, name in names.items():
                    with sides((ours, noop), destination, BodyMode.NONE) as (our_side, noop_side):
                        _report_over(row, our_side, noop_side, Load(SIZES[name][0], 16, SIZES[name][1]), reads[name])


def _report_over(name: str, ours: Side, noop: Side, load: Load, read: float) -> None:
    idle = ours.server.idle_share()  # 64 event streams are followed whether requests come or not
    results = paired(ours, noop, lambda side: side.cpu_us(load, idle if side is ours else 0.0))
    over = statistics.median(us - noop_us for us, noop_us in results) - read
    report(name, over, "us", statistics.median(noop_us for _, noop_us in results))


async def _read_us(model: Path, size: int) -> float:
    """CPU of reading one prompt whose beginning was read before, all threads of this process."""
    reader = PromptReader.from_settings(Settings(tokenizer_path=model), CollectorRegistry())
    body = chat_body(size)
    times = []
    for _ in range(READS):
        begin = time.process_time()
        request = await reader.read(
            path="/v1/chat/completions", content_type="application/json", body=body, request_id=""
        )
        times.append((time.process_time() - begin) * 1e6)
    reader.close()
    assert len(request.prompt.tokens), "the prompt is not read in time"
    return statistics.median(times[5:])


if __name__ == "__main__":
    main(sys.argv[1:])
