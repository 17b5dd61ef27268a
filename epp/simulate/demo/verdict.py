"""Whether the demo shows what it promises, in words."""

from dataclasses import dataclass

from epp.simulate.demo.results import Predictions, Run, median_ratio

ROUND_ROBIN_BAR = 0.6
"""KV-aware TTFT p50 over round robin's, at most."""
RIGHT_BAR = 0.95
"""Share of requests whose cached tokens are predicted exactly, at least."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise and whether it held."""

    text: str
    held: bool


def findings(round_robin: Run, approximate: Run, kv: Run, expected: int) -> list[Finding]:
    """All promises of the demo, each compared with what was measured."""
    found = [_complete(run, expected) for run in (round_robin, approximate, kv)]
    if not all(finding.held for finding in found):
        return found
    for baseline, bar in ((round_robin, ROUND_ROBIN_BAR), (approximate, 1.0)):
        ratio = median_ratio(kv, baseline)
        text = f"TTFT p50 over that of {baseline.label}: {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        found.append(Finding(f"{text}; bar {bar:g}", ratio.value <= bar))
        text = f"cached share {kv.cached_share:.1%} against {baseline.cached_share:.1%} of {baseline.label}"
        found.append(Finding(text, kv.cached_share > baseline.cached_share))
    found.append(_predicted(kv.predictions or Predictions(0, 0, 0)))
    return found


def _complete(run: Run, expected: int) -> Finding:
    done = len(run.measured) - len(run.errors)
    text = f"{run.label}: {done} of {expected} requests answered, each answer the right one"
    if run.errors:
        text += f"; first error: {run.errors[0]}"
    return Finding(text, done == expected)


def _predicted(counts: Predictions) -> Finding:
    text = (
        f"cached tokens predicted exactly: {counts.right:.1%} of requests; "
        f"{counts.over} times too many, {counts.under} times too few; bar {RIGHT_BAR:.0%}"
    )
    return Finding(text, counts.right >= RIGHT_BAR)
