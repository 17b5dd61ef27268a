"""Results as JUnit XML, which CI systems show."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import UTC, datetime

from epp.conformance.check import Result
from epp.conformance.verdict import Verdict


def junit(target: str, results: Sequence[Result]) -> bytes:
    """The report: one suite for each subject. A failed SHOULD is a failure too, with its level as the type."""
    root = ElementTree.Element("testsuites", {"name": f"conformance of {target}", **_counts(results)})
    for subject in dict.fromkeys(result.check.subject for result in results):
        of_subject = [result for result in results if result.check.subject == subject]
        started = datetime.fromtimestamp(of_subject[0].started, UTC).isoformat(timespec="seconds")
        facts = {"name": subject, "timestamp": started, **_counts(of_subject)}
        suite = ElementTree.SubElement(root, "testsuite", facts)
        for result in of_subject:
            _add(suite, result)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _counts(results: Sequence[Result]) -> dict[str, str]:
    verdicts = [result.verdict for result in results]
    return {
        "tests": str(len(results)),
        "failures": str(verdicts.count(Verdict.FAILED)),
        "errors": str(verdicts.count(Verdict.UNDECIDED)),
        "skipped": str(verdicts.count(Verdict.SKIPPED)),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }


def _add(suite: ElementTree.Element, result: Result) -> None:
    check = result.check
    case = ElementTree.SubElement(
        suite, "testcase", classname=check.subject, name=check.name, time=f"{result.seconds:.3f}"
    )
    if result.verdict is Verdict.FAILED:
        failure = ElementTree.SubElement(case, "failure", type=str(check.level), message=result.seen)
        failure.text = f"rule: {check.rule}\nsource: {check.source}\nmeans: {check.breach}"
    elif result.verdict is Verdict.UNDECIDED:
        ElementTree.SubElement(case, "error", type=str(check.level), message=result.seen)
    elif result.verdict is Verdict.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=result.seen)
