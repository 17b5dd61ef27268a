"""Mean time to first token on two public traces, simulated with the real scheduler; baseline: round robin."""

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.report import report
from epp.scheduling.policies import policy_from
from epp.scheduling.policy import Policy
from epp.settings import Settings
from epp.simulate.trace.requests import read_trace
from epp.simulate.trace.run import Conditions, run

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
CASES = {
    "ttft_conversation_1x": ("conversation", 1.0, 16_384),
    "ttft_conversation_1_8x": ("conversation", 1.8, 16_384),
    "ttft_synthetic_1x": ("synthetic", 1.0, 4096),
    "ttft_synthetic_2x": ("synthetic", 2.0, 4096),
}


def policy_of(name: str) -> Callable[[random.Random], Policy]:
    settings = Settings(policy=name)
    return lambda draw: policy_from(settings, draw)


def main(rows: Sequence[str]) -> None:
    for row in rows or CASES:
        trace_name, speed, cache_blocks = CASES[row]
        trace = read_trace(TRACES / f"{trace_name}_trace.jsonl", speed=speed)
        conditions = Conditions(cache_blocks=cache_blocks)
        value, baseline = (
            float(run(trace, policy_of(name), conditions).ttft.mean()) for name in ("predicted-ttft", "round-robin")
        )
        report(row, value, "s", baseline=baseline)


if __name__ == "__main__":
    main(sys.argv[1:])
