"""`make bench`: run all benchmarks, or the modules and rows named; JSON lines on stdout, a table on stderr."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

BENCHMARKS = {
    "exchange": (
        "added_latency_1kb",
        "added_latency_100kb",
        "cpu_exchange_1kb_duplex",
        "cpu_exchange_1kb_none",
        "cpu_exchange_220kb_duplex",
        "cpu_exchange_220kb_none",
        "cpu_chunk",
        "streams_per_core",
        "added_latency_1kb_http2",
        "added_latency_100kb_http2",
        "cpu_exchange_1kb_duplex_http2",
        "cpu_exchange_1kb_none_http2",
        "cpu_exchange_220kb_duplex_http2",
        "cpu_exchange_220kb_none_http2",
        "cpu_chunk_http2",
        "streams_per_core_http2",
    ),
    "kv_exchange": (
        "cpu_kv_1kb",
        "cpu_kv_20kb",
        "cpu_kv_220kb",
        "cpu_kv_1kb_http2",
        "cpu_kv_20kb_http2",
        "cpu_kv_220kb_http2",
        "cpu_kv_read_1kb",
        "cpu_kv_read_20kb",
        "cpu_kv_read_220kb",
    ),
    "kv_index": (
        "lookup_128x64_list",
        "lookup_128x64_buffer",
        "lookup_2048x64_list",
        "lookup_2048x64_buffer",
        "lookup_8192x64_list",
        "lookup_8192x64_buffer",
        "lookup_2048x512_list",
        "lookup_2048x512_buffer",
        "lookup_2048x64_among_1m",
        "ingest_1",
        "ingest_8",
        "ingest_64",
        "ingest_step_store",
        "ingest_step_removals",
        "memory_entry",
        "memory_entry_1k_8w",
        "memory_entry_1k_64w",
        "memory_entry_100k_8w",
        "memory_entry_100k_64w",
        "memory_entry_1m_8w",
        "memory_entry_1m_64w",
        "memory_entry_4m_8w",
        "memory_entry_4m_64w",
    ),
    "kv_serving": ("ingest_sustained", "ingest_sustained_cpu", "lookup_busy", "lookup_busy_wait", "loop_stall"),
    "kv_healing": ("healing_known", "healing_known_anywhere", "healing_false"),
    "tokens": ("tokens_turn30", "tokens_cold", "tokens_100kb_warm", "loop_stall_1mb", "tokens_cache_bytes"),
    "decision": ("decision_64", "decision_1000"),
    "idle": ("idle_100",),
    "kube": ("kube_event", "kube_list_1000", "kube_gone_delay"),
    "replicas": ("replica_share", "processes_cpu", "processes_rate"),
    "warm_start": ("warm_start", "warm_start_p99"),
    "dead": ("dead_kill_failures", "dead_kill_pick", "dead_hole_pick", "dead_blind_pick"),
    "robustness": (
        "robust_plain",
        "robust_rates",
        "robust_rates_unlearnt",
        "robust_metrics",
        "robust_index",
        "robust_half_slow",
        "robust_one_slow",
        "robust_failed",
        "robust_small_caches",
        "robust_bursts",
        "robust_unary",
        "robust_replicas_2",
        "robust_replicas_4",
    ),
    "ttft": ("ttft_conversation_1x", "ttft_conversation_1_8x", "ttft_synthetic_1x", "ttft_synthetic_2x"),
}
"""Module in this folder -> the rows that it prints; a module gets the wanted rows as arguments."""


def main(only: Sequence[str]) -> int:
    """Run what is wanted; 0 when every benchmark ran, 1 when one failed, 2 for an unknown name."""
    unknown = [name for name in only if not any(_wanted(module, [name]) for module in BENCHMARKS)]
    if unknown:
        rows = ", ".join(row for module in BENCHMARKS.values() for row in module)
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}: {rows}", file=sys.stderr)
        return 2
    table = Table("name", "value", "unit", "baseline", "ratio")
    failed = False
    for module in BENCHMARKS:
        wanted = _wanted(module, only)
        if wanted:
            failed |= not _run(module, wanted, table)
    Console(stderr=True).print(table)
    return int(failed)


def _wanted(module: str, only: Sequence[str]) -> list[str]:
    rows = BENCHMARKS[module]
    if not only or module in only:
        return list(rows)
    return [row for row in rows if row in only]


def _run(module: str, rows: Sequence[str], table: Table) -> bool:
    begin = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{module}", *rows]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            result = json.loads(line)
            if result["name"] not in rows:
                continue
            print(line, end="", flush=True)
            table.add_row(*("" if result[key] is None else str(result[key]) for key in _COLUMNS))
    print(f"{module}: {time.monotonic() - begin:.0f} s, status {process.returncode}", file=sys.stderr)
    return process.returncode == 0


_COLUMNS = ("name", "value", "unit", "baseline", "ratio")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
