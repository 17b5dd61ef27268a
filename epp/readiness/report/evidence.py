"""Results as Markdown, to be kept as evidence."""

from epp import __version__
from epp.conformance.run import clean
from epp.readiness.report.outcome import Outcome
from epp.readiness.rule import Result


def evidence(outcome: Outcome) -> bytes:
    """What was checked, of what, and how it ended."""
    lines = [
        f"# Gateway readiness of {_cell(outcome.chain)}",
        "",
        f"**{_cell(outcome.headline)}**",
        "",
        "| | |",
        "|---|---|",
        f"| snapshot | {_cell(outcome.source)} |",
        f"| captured | {outcome.captured_at} |",
        f"| digest | `{outcome.digest}` |",
        f"| tool | epp validate {__version__} |",
        "",
        "| # | check | rule | verdict | seen |",
        "|---|---|---|---|---|",
        *(_row(result) for result in outcome.by_number),
        "",
        *outcome.platform,
        *((outcome.load,) if outcome.load else ()),
    ]
    return "\n".join(lines).rstrip().encode() + b"\n"


def _row(result: Result) -> str:
    rule = result.rule
    cells = (str(rule.number), rule.name, rule.rule, str(result.verdict), result.text)
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return clean(text).replace("|", "\\|").replace("<", "&lt;")
