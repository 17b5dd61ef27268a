"""One result, in the one form that all benchmarks print."""

import json


def report(name: str, value: float, unit: str, baseline: float | None = None) -> None:
    """Print one JSON line; `baseline` was measured in the same run, in the same unit."""
    line: dict[str, object] = {"name": name, "value": _short(value), "unit": unit, "baseline": None, "ratio": None}
    if baseline is not None:
        line |= {"baseline": _short(baseline), "ratio": _short(value / baseline) if baseline else None}
    print(json.dumps(line), flush=True)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
