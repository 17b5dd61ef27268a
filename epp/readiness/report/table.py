"""Results as a table in the terminal: one line for each check, and what to do about those that failed."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epp.conformance.run import clean
from epp.readiness.report.outcome import Outcome
from epp.readiness.rule import Rule, Verdict

_STYLE = {
    Verdict.PASSED: "green",
    Verdict.WARNED: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.SKIPPED: "dim",
    Verdict.OTHER: "magenta",
}


def show(outcome: Outcome, console: Console) -> None:
    """The verdict on each check, and the whole in the last line."""
    table = Table("#", "check", "verdict", "what was seen", box=None, pad_edge=False)
    for result in outcome.by_number:
        text = clean(result.text)
        if result.verdict in (Verdict.FAILED, Verdict.WARNED):
            text += f"\n→ {result.rule.fix}"
        style = _STYLE[result.verdict]
        table.add_row(str(result.rule.number), result.rule.name, f"[{style}]{result.verdict}[/]", escape(text))
    console.print(f"[bold]{escape(outcome.chain)}[/], by {escape(outcome.source)} of {outcome.captured_at}")
    console.print(table)
    for line in outcome.platform:
        console.print(f"[dim]{escape(line)}[/]")
    if outcome.load:
        console.print(escape(outcome.load))
    counts = Counter(result.verdict for result in outcome.results)
    console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]))
    console.print(f"[bold]{escape(clean(outcome.headline))}[/]")


def show_rules(rules: Sequence[Rule], console: Console) -> None:
    """What is checked, and what each check needs."""
    table = Table("#", "check", "mode", "needs", "rule", "source")
    for rule in sorted(rules, key=lambda one: one.number):
        needs = ", ".join(map(str, rule.needs))
        table.add_row(str(rule.number), rule.name, rule.mode, needs, escape(rule.rule), escape(rule.source))
    console.print(table)
