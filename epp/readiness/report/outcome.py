"""All that a report tells of one run."""

from dataclasses import dataclass

from epp.conformance.report.case import Case, Report, Status
from epp.conformance.run import clean
from epp.readiness.rule import Result, Verdict

_STATUS = {
    Verdict.PASSED: Status.PASSED,
    Verdict.WARNED: Status.PASSED,
    Verdict.FAILED: Status.FAILED,
    Verdict.SKIPPED: Status.SKIPPED,
    Verdict.OTHER: Status.OTHER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of one run, and what they are about."""

    results: tuple[Result, ...]
    """In the order in which they were settled."""
    headline: str
    chain: str
    """Gateway, pool and entry, for people."""
    source: str
    """The snapshot file, or the cluster."""
    digest: str
    captured_at: str
    platform: tuple[str, ...] = ()
    """Who judges the platform below the chain."""
    load: str = ""
    """What `--perf` showed; no check judges it."""

    @property
    def by_number(self) -> list[Result]:
        """The results as the reference numbers them."""
        return sorted(self.results, key=lambda result: result.rule.number)


def report(outcome: Outcome) -> Report:
    """The results for machines."""
    facts: dict[str, object] = {
        "verdict": outcome.headline,
        "chain": outcome.chain,
        "snapshot": outcome.source,
        "digest": outcome.digest,
        "capturedAt": outcome.captured_at,
        **({"load": outcome.load} if outcome.load else {}),
    }
    cases = tuple(_case(result) for result in outcome.by_number)
    return Report(tool="epp validate", title=f"gateway readiness of {outcome.chain}", environment=facts, cases=cases)


def _case(result: Result) -> Case:
    rule = result.rule
    extra: dict[str, object] = {
        "id": rule.number,
        "mode": str(rule.mode),
        "rule": rule.rule,
        "source": rule.source,
        "objects": sorted({problem.where for problem in result.problems if problem.where}),
        "verdict": str(result.verdict),
    }
    if result.blocked_by is not None:
        extra["blockedBy"] = result.blocked_by
    if result.problems:
        extra["remediation"] = rule.fix
    return Case(
        name=f"{rule.number} {rule.name}",
        suite="gateway-readiness",
        status=_STATUS[result.verdict],
        kind=str(rule.group),
        message=clean(result.text),
        detail=f"rule: {rule.rule}\nsource: {rule.source}\nfix: {rule.fix}",
        extra=extra,
        started=result.started,
        seconds=result.seconds,
    )
