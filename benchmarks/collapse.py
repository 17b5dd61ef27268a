"""The worst uneven spread that any setting of the default policy gives: every corner of the documented ranges.

One JSON line for each workload: requests of the busiest worker over the mean, the most of all settings; baseline: that
of the default settings. Which setting it was is told on stderr. With `--write`, the table goes into docs/scheduling.md.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from benchmarks.policies import DOCUMENT, HEADINGS, measure, write_table
from benchmarks.report import report
from benchmarks.ttft import CASES
from epp.settings import Settings

BEGIN, END = "<!-- collapse: make collapse -->\n", "<!-- /collapse -->\n"
NAMES = ("price_least", "price_most", "price_in_flight", "price_context", "exploration")
"""Every setting of the default policy."""


def ends(name: str) -> tuple[float, float]:
    """The least and the most that a setting may be."""
    least = most = 0.0
    for bound in Settings.model_fields[name].metadata:
        least, most = getattr(bound, "ge", least), getattr(bound, "le", most)
    assert most > least, f"{name} has no range"
    return least, most


def corners() -> Iterator[Mapping[str, float]]:
    """All of them at one end of their ranges or the other."""
    for values in product(*map(ends, NAMES)):
        yield dict(zip(NAMES, values, strict=True))


def spread(settings: Mapping[str, float]) -> list[float]:
    """Requests of the busiest worker over the mean, for each workload."""
    return [each.max_over_mean for each in measure(settings)]


def spell(settings: Mapping[str, float]) -> str:
    return " ".join(f"EPP_{name.upper()}={value:g}" for name, value in settings.items())


def main(arguments: Sequence[str]) -> None:
    tried = list(corners())
    with ProcessPoolExecutor() as processes:
        default, *found = processes.map(spread, [{}, *tried])
    lines = ["| | default | most at the ends of the ranges | with |\n", "|---|---|---|---|\n"]
    for at, case in enumerate(CASES):
        most, settings = max(
            ((row[at], each) for row, each in zip(found, tried, strict=True)), key=lambda pair: pair[0]
        )
        report(f"collapse_{case.removeprefix('ttft_')}", most, "max/mean", baseline=default[at])
        lines.append(f"| {HEADINGS[at]} | {default[at]:.2f} | {most:.2f} | `{spell(settings)}` |\n")
        print(lines[-1], end="", file=sys.stderr)
    if "--write" in arguments:
        write_table(DOCUMENT, BEGIN, END, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
