"""Results in the Common Test Report Format (ctrf.io), as JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from epp import __version__
from epp.conformance.check import Result
from epp.conformance.verdict import Verdict

_STATUS = {
    Verdict.PASSED: "passed",
    Verdict.FAILED: "failed",
    Verdict.SKIPPED: "skipped",
    Verdict.UNDECIDED: "other",
}


def ctrf(target: str, results: Sequence[Result]) -> bytes:
    """The report. Times are in milliseconds; `other` is what could not be decided."""
    now = datetime.now(UTC)
    statuses = [_STATUS[result.verdict] for result in results]
    start = min((result.started for result in results), default=now.timestamp())
    stop = max((result.started + result.seconds for result in results), default=now.timestamp())
    counts = {status: statuses.count(status) for status in ("passed", "failed", "skipped", "pending", "other")}
    document = {
        "reportFormat": "CTRF",
        "specVersion": "0.0.1",
        "timestamp": now.isoformat(timespec="seconds"),
        "generatedBy": "epp conformance",
        "results": {
            "tool": {"name": "epp conformance", "version": __version__},
            "summary": {"tests": len(results), **counts, "start": int(start * 1000), "stop": int(stop * 1000)},
            "tests": [_test(result) for result in results],
            "environment": {"extra": {"target": target}},
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _test(result: Result) -> dict[str, object]:
    check = result.check
    return {
        "name": check.name,
        "status": _STATUS[result.verdict],
        "duration": round(result.seconds * 1000),
        "start": int(result.started * 1000),
        "suite": [check.subject],
        "tags": [str(check.level)],
        **({"message": result.seen} if result.seen else {}),
        "extra": {"level": str(check.level), "rule": check.rule, "source": check.source, "breach": check.breach},
    }
