"""The results of the kit as a report for machines."""

from collections.abc import Sequence

from epp.conformance.check import Result
from epp.conformance.report.case import Case, Report, Status
from epp.conformance.verdict import Verdict

_STATUS = {
    Verdict.PASSED: Status.PASSED,
    Verdict.FAILED: Status.FAILED,
    Verdict.SKIPPED: Status.SKIPPED,
    Verdict.UNDECIDED: Status.OTHER,
}


def report(target: str, results: Sequence[Result]) -> Report:
    """A failed SHOULD is a failure too, with its level as the kind."""
    return Report(
        tool="epp conformance",
        title=f"conformance of {target}",
        environment={"target": target},
        cases=tuple(_case(result) for result in results),
    )


def _case(result: Result) -> Case:
    check = result.check
    return Case(
        name=check.name,
        suite=check.subject,
        status=_STATUS[result.verdict],
        kind=str(check.level),
        message=result.seen,
        detail=f"rule: {check.rule}\nsource: {check.source}\nmeans: {check.breach}",
        extra={"level": str(check.level), "rule": check.rule, "source": check.source, "breach": check.breach},
        started=result.started,
        seconds=result.seconds,
    )
