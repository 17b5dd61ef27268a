"""The arguments of `epp simulate trace` and `compare`; light to import, so that `epp --help` is quick."""

import argparse
from pathlib import Path

TRACE_EXAMPLE = "  epp simulate trace tests/data/traces/synthetic_trace.jsonl --cache-blocks 4096 --speed 2"
COMPARE_EXAMPLE = "  epp simulate compare tests/data/traces/synthetic_trace.jsonl --policies predicted-ttft,round-robin"


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """One policy on one trace; the policy and its settings come from EPP_* variables unless named here."""
    _add_conditions(parser)
    parser.add_argument("--policy", help="name of the policy; default: EPP_POLICY")


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Several policies on one trace."""
    _add_conditions(parser)
    parser.add_argument("--policies", help="names, separated by commas; default: all")
    parser.add_argument("--scorers", action="append", default=[], help="weighted scorers, such as prefix:3,queue:2")


def _add_conditions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", type=Path, help="Mooncake trace: JSON lines with timestamp, input_length, hash_ids ..."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each policy")
    parser.add_argument("--first", type=int, help="only this many requests")
    parser.add_argument("--speed", type=_positive, default=1.0, help="how many times faster the requests come")
    workers = parser.add_argument_group("workers")
    workers.add_argument("--workers", type=int, default=8, help="number of workers")
    workers.add_argument("--cache-blocks", type=int, default=4096, help="blocks of 512 tokens in each cache")
    workers.add_argument("--tokens-per-second", type=_positive, default=8000.0, help="prefill rate of a worker")
    workers.add_argument("--slowness", default="", help="factors for the first workers, such as 2,2,1.5")
    hard = parser.add_argument_group("what makes it hard")
    hard.add_argument("--view-age", type=float, default=0.0, help="seconds by which the cache index is late")
    hard.add_argument("--streamed", type=float, default=1.0, help="share of answers that are streamed")
    hard.add_argument(
        "--wrong-rates", type=_positive, default=1.0, help="half of the workers are thought so much faster, half slower"
    )
    hard.add_argument("--metrics-age", type=float, help="seconds by which engine metrics are late; default: none read")
    hard.add_argument("--failed", type=int, default=0, help="workers that answer every request with 500")
    hard.add_argument("--bursts", type=int, default=1, help="every 50th request comes so many times at once")
    hard.add_argument("--replicas", type=int, default=1, help="pickers among which requests are spread")
    hard.add_argument(
        "--share-ms", type=float, help="milliseconds until pickers know of each other's picks; else never"
    )
    hard.add_argument(
        "--spread-ms",
        type=float,
        default=0.0,
        help="spread arrivals by chance over so many ms; the conversation trace records them in steps of 3000 / SPEED",
    )
    hard.add_argument("--seed", type=int, default=0, help="of all chance")


def _positive(value: str) -> float:
    number = float(value)
    if not number > 0.0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number
