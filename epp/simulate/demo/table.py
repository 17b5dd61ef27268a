"""The demo's table, while it runs and at the end."""

from collections.abc import Sequence

from rich.table import Table

from epp.simulate.demo.results import Run


def results_table(runs: Sequence[Run], expected: int) -> Table:
    """One row for each policy; `expected` requests in each."""
    table = Table(title="four simulated workers behind a real Envoy; the same agents and requests for each policy")
    table.add_column("policy")
    for name in ("requests", "errors", "cached", "TTFT p50", "TTFT p95", "picks per worker", "prediction right"):
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(
            run.label,
            f"{len(run.measured)}/{expected}",
            f"[red]{len(run.errors)}[/]" if run.errors else "0",
            f"{run.cached_share:.1%}",
            f"{run.ttft(50) * 1000:.0f} ms",
            f"{run.ttft(95) * 1000:.0f} ms",
            " ".join(str(count) for count in run.picks),
            f"{run.predictions.right:.1%}" if run.predictions else "-",
        )
    return table
