"""Results in the Common Test Report Format (ctrf.io), as JSON."""

from datetime import UTC, datetime

import msgspec

from epp import __version__
from epp.conformance.report.case import Case, Report, Status


def ctrf(report: Report) -> bytes:
    """The report. Times are in milliseconds; `other` is what could not be decided."""
    now = datetime.now(UTC)
    start = min((case.started for case in report.cases), default=now.timestamp())
    stop = max((case.started + case.seconds for case in report.cases), default=now.timestamp())
    counts = {str(status): report.count(status) for status in Status} | {"pending": 0}
    document = {
        "reportFormat": "CTRF",
        "specVersion": "0.0.1",
        "timestamp": now.isoformat(timespec="seconds"),
        "generatedBy": report.tool,
        "results": {
            "tool": {"name": report.tool, "version": __version__},
            "summary": {"tests": len(report.cases), **counts, "start": int(start * 1000), "stop": int(stop * 1000)},
            "tests": [_test(case) for case in report.cases],
            "environment": {"extra": report.environment},
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _test(case: Case) -> dict[str, object]:
    return {
        "name": case.name,
        "status": str(case.status),
        "duration": round(case.seconds * 1000),
        "start": int(case.started * 1000),
        "suite": [case.suite],
        "tags": [case.kind],
        **({"message": case.message} if case.message else {}),
        "extra": case.extra,
    }
