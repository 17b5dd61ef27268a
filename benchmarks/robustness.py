"""The default policy under hard conditions, simulated with the real scheduler; baseline: round robin.

JSON lines as all benchmarks; with `--write`, the table goes into docs/scheduling.md.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.report import report
from benchmarks.ttft import TRACES, policy_of
from epp.simulate.trace.requests import in_bursts, read_trace
from epp.simulate.trace.run import Conditions, run
from epp.simulate.trace.summary import Summary, summarise

BEGIN, END = "<!-- robustness: make robustness -->\n", "<!-- /robustness -->\n"
DOCUMENT = Path(__file__).parents[1] / "docs" / "scheduling.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: what makes it hard, in words and as options of `epp simulate trace`."""

    words: str
    options: str = ""
    conditions: Conditions = field(default_factory=Conditions)
    bursts: int = 1
    speed: float = 1.0


HALF_SLOW = (2.0,) * 4
ALL_SLOW = (10.0,) * 8
CASES = {
    "robust_plain": Case(words="nothing"),
    "robust_rates": Case(
        words="rates of the workers wrong by 2 x, half up, half down",
        options="--wrong-rates 2",
        conditions=Conditions(wrong_rates=2.0),
    ),
    "robust_rates_unlearnt": Case(
        words="the same, and no answer that teaches",
        options="--wrong-rates 2 --streamed 0",
        conditions=Conditions(wrong_rates=2.0, streamed=0.0),
    ),
    "robust_hidden": Case(
        words="no first token is ever seen (response bodies hidden)",
        options="--streamed 0",
        conditions=Conditions(streamed=0.0),
    ),
    "robust_all_slow": Case(
        words="all workers 10 x slower than the first guess, a tenth of the arrivals",
        options="--speed 0.1 --slowness 10,10,10,10,10,10,10,10",
        conditions=Conditions(slowness=ALL_SLOW),
        speed=0.1,
    ),
    "robust_all_slow_hidden": Case(
        words="the same, and no first token is ever seen",
        options="--speed 0.1 --slowness 10,10,10,10,10,10,10,10 --streamed 0",
        conditions=Conditions(slowness=ALL_SLOW, streamed=0.0),
        speed=0.1,
    ),
    "robust_metrics": Case(
        words="engine metrics 5 s late", options="--metrics-age 5", conditions=Conditions(metrics_age=5.0)
    ),
    "robust_index": Case(words="cache index 5 s late", options="--view-age 5", conditions=Conditions(view_age=5.0)),
    "robust_half_slow": Case(
        words="half of the workers 2 x slower", options="--slowness 2,2,2,2", conditions=Conditions(slowness=HALF_SLOW)
    ),
    "robust_one_slow": Case(
        words="one worker 4 x slower", options="--slowness 4", conditions=Conditions(slowness=(4.0,))
    ),
    "robust_failed": Case(words="one worker answers 500", options="--failed 1", conditions=Conditions(failed=1)),
    "robust_small_caches": Case(
        words="caches of 1,024 blocks", options="--cache-blocks 1024", conditions=Conditions(cache_blocks=1024)
    ),
    "robust_bursts": Case(words="every 50th prompt 20 times at once", options="--bursts 20", bursts=20),
    "robust_unary": Case(
        words="half of the answers unary", options="--streamed 0.5", conditions=Conditions(streamed=0.5)
    ),
    "robust_replicas_2": Case(
        words="2 pickers that do not know of each other", options="--replicas 2", conditions=Conditions(replicas=2)
    ),
    "robust_replicas_4": Case(words="4 such pickers", options="--replicas 4", conditions=Conditions(replicas=4)),
}
"""Rows; the words go into the documentation."""


def measure(case: Case) -> tuple[Summary, float, float]:
    """The default policy, the mean of round robin, and tries for each request."""
    trace = in_bursts(read_trace(TRACES / "synthetic_trace.jsonl", speed=case.speed), case.bursts)
    ours = run(trace, policy_of("predicted-ttft"), case.conditions)
    turns = run(trace, policy_of("round-robin"), replace(case.conditions, view_age=0.0))
    summary = summarise("predicted-ttft", trace, ours, case.conditions)
    return summary, float(turns.ttft.mean()), float(ours.tries.mean())


def main(arguments: Sequence[str]) -> None:
    write = "--write" in arguments
    lines = [
        "| | options | default, s | p99 | round robin | max/mean | regret | tries |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for name in [each for each in arguments if each != "--write"] or CASES:
        case = CASES[name]
        found, turns, tries = measure(case)
        report(name, found.ttft_mean, "s", baseline=turns)
        numbers = f"{found.ttft_mean:.3f} | {found.ttft_p99:.1f} | {turns:.2f} | {found.max_over_mean:.2f}"
        options = f"`{case.options}`" if case.options else ""
        lines.append(f"| {case.words} | {options} | {numbers} | {found.regret_mean:.3f} | {tries:.3f} |\n")
        print(lines[-1], end="", file=sys.stderr)
    if write:
        text = DOCUMENT.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCUMENT.write_text(before + BEGIN + "".join(lines) + END + after)


if __name__ == "__main__":
    main(sys.argv[1:])
