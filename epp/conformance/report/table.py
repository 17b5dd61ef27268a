"""Results and lists of checks as tables in the terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epp.conformance.check import Check, Level, Result
from epp.conformance.verdict import Verdict

_STYLE = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.SKIPPED: "dim",
    Verdict.UNDECIDED: "yellow",
}


def show(target: str, results: Sequence[Result], console: Console) -> None:
    """The verdict on each check, then what failed and what it means."""
    table = Table("check", "level", "verdict", "rule, or what was seen", title=f"conformance of {escape(target)}")
    for result in results:
        style = _STYLE[result.verdict]
        if result.verdict is Verdict.FAILED and result.check.level is Level.SHOULD:
            style = "red"
        text = escape(result.seen or result.check.rule)
        table.add_row(result.check.name, result.check.level, f"[{style}]{result.verdict}[/]", text)
    console.print(table)
    for result in results:
        if result.verdict is Verdict.FAILED:
            _explain(result, console)
    console.print(_summary(results))


def _explain(result: Result, console: Console) -> None:
    console.print(f"\n[bold]{result.check.name}[/] ({result.check.level})")
    for label, text in (
        ("rule", result.check.rule),
        ("source", result.check.source),
        ("seen", result.seen),
        ("means", result.check.breach),
    ):
        console.print(f"  {label:7}{escape(text)}", highlight=False)


def _summary(results: Sequence[Result]) -> str:
    counts = Counter((result.verdict, result.check.level) for result in results)
    parts = [
        f"{counts[verdict, level]} {level} {verdict}"
        for verdict in Verdict
        for level in Level
        if counts[verdict, level]
    ]
    return "\n" + ", ".join(parts)


def show_checks(checks: Sequence[Check], console: Console) -> None:
    """What the kit checks."""
    table = Table("check", "level", "rule", "source")
    for check in checks:
        table.add_row(check.name, check.level, escape(check.rule), escape(check.source))
    console.print(table)
