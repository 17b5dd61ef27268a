"""Policies beside each other on the public traces, simulated with the real scheduler; baseline: round robin.

JSON lines as all benchmarks; with `--write`, the table goes into docs/scheduling.md.
"""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import report
from benchmarks.ttft import CASES, TRACES
from epp.scheduling.policies import policy_from
from epp.scheduling.policy import Policy
from epp.settings import Settings
from epp.simulate.trace.requests import read_trace
from epp.simulate.trace.run import Conditions, run
from epp.simulate.trace.summary import Summary, summarise

BEGIN, END = "<!-- policies: make policies -->\n", "<!-- /policies -->\n"
DOCUMENT = Path(__file__).parents[1] / "docs" / "scheduling.md"
HEADINGS = ("conversation", "x 1.8", "synthetic", "x 2")
LLM_D = "prefix:3,least-in-flight:2,least-tokens:2"


@dataclass(frozen=True, slots=True)
class Variant:
    """One row: its words in the documentation, and the settings that make it."""

    words: str
    settings: Mapping[str, object]


VARIANTS = {
    "policy_round_robin": Variant("`round-robin`", {"policy": "round-robin"}),
    "policy_random": Variant("`random`", {"policy": "random"}),
    "policy_least_in_flight": Variant("`least-in-flight`", {"policy": "least-in-flight"}),
    "policy_least_tokens": Variant("`least-tokens`", {"policy": "least-tokens"}),
    "policy_approximate_prefix": Variant("`approximate-prefix`", {"policy": "approximate-prefix"}),
    "policy_dynamo_cost": Variant("`dynamo-cost`", {"policy": "dynamo-cost"}),
    "policy_scorers": Variant(f"`EPP_SCORERS={LLM_D}`", {"scorers": LLM_D}),
    "policy_greedy": Variant("greedy (`EPP_PRICE_LEAST=0 EPP_PRICE_MOST=0`)", {"price_least": 0.0, "price_most": 0.0}),
    "policy_price_1": Variant(
        "fixed price 1 (`EPP_PRICE_LEAST=1 EPP_PRICE_MOST=1`)", {"price_least": 1.0, "price_most": 1.0}
    ),
    "policy_price_4": Variant("fixed price 4", {"price_least": 4.0, "price_most": 4.0}),
    "policy_default": Variant("**default**", {}),
}


def policy_of(settings: Mapping[str, object]) -> Callable[[random.Random], Policy]:
    """What builds the policy of these settings."""
    known = Settings.model_validate(settings)
    return lambda draw: policy_from(known, draw)


def measure(settings: Mapping[str, object]) -> list[Summary]:
    """One summary for each workload of `make bench ONLY=ttft`."""
    found = []
    for trace_name, speed, cache_blocks in CASES.values():
        trace = read_trace(TRACES / f"{trace_name}_trace.jsonl", speed=speed)
        conditions = Conditions(cache_blocks=cache_blocks)
        found.append(summarise(trace_name, trace, run(trace, policy_of(settings), conditions), conditions))
    return found


def cell(summary: Summary) -> str:
    """Mean and p99 to the first token, and requests of the busiest worker over the mean."""
    digits = 3 if summary.ttft_mean < 10 else 1
    return f"{summary.ttft_mean:.{digits}f} ({summary.ttft_p99:.0f}; {summary.max_over_mean:.2f})"


def write_table(document: Path, begin: str, end: str, lines: Sequence[str]) -> None:
    """Put `lines` between the two marks."""
    text = document.read_text()
    document.write_text(text.split(begin)[0] + begin + "".join(lines) + end + text.split(end)[1])


def main(arguments: Sequence[str]) -> None:
    lines = [f"| | {' | '.join(HEADINGS)} |\n", "|---|---|---|---|---|\n"]
    turns = measure(VARIANTS["policy_round_robin"].settings)
    for name in [each for each in arguments if each != "--write"] or VARIANTS:
        found = measure(VARIANTS[name].settings)
        for case, ours, baseline in zip(CASES, found, turns, strict=True):
            report(f"{name}_{case.removeprefix('ttft_')}", ours.ttft_mean, "s", baseline=baseline.ttft_mean)
        lines.append(f"| {VARIANTS[name].words} | {' | '.join(map(cell, found))} |\n")
        print(lines[-1], end="", file=sys.stderr, flush=True)
    if "--write" in arguments:
        write_table(DOCUMENT, BEGIN, END, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
