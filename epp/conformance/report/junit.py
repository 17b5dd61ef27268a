"""Results as JUnit XML, which CI systems show."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import UTC, datetime

from epp.conformance.report.case import Case, Report, Status


def junit(report: Report) -> bytes:
    """The report: one suite for each part. A failure's type says how binding the rule is."""
    root = ElementTree.Element("testsuites", {"name": report.title, **_counts(report.cases)})
    for suite in dict.fromkeys(case.suite for case in report.cases):
        of_suite = [case for case in report.cases if case.suite == suite]
        started = datetime.fromtimestamp(of_suite[0].started, UTC).isoformat(timespec="seconds")
        element = ElementTree.SubElement(root, "testsuite", {"name": suite, "timestamp": started, **_counts(of_suite)})
        for case in of_suite:
            _add(element, case)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    statuses = [case.status for case in cases]
    return {
        "tests": str(len(cases)),
        "failures": str(statuses.count(Status.FAILED)),
        "errors": str(statuses.count(Status.OTHER)),
        "skipped": str(statuses.count(Status.SKIPPED)),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }


def _add(suite: ElementTree.Element, case: Case) -> None:
    element = ElementTree.SubElement(
        suite, "testcase", classname=case.suite, name=case.name, time=f"{case.seconds:.3f}"
    )
    if case.status is Status.FAILED:
        failure = ElementTree.SubElement(element, "failure", type=case.kind, message=case.message)
        failure.text = case.detail
    elif case.status is Status.OTHER:
        ElementTree.SubElement(element, "error", type=case.kind, message=case.message)
    elif case.status is Status.SKIPPED:
        ElementTree.SubElement(element, "skipped", message=case.message)
