"""One result, as reports for machines show it; no matter which checks it comes from."""

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """CTRF's words for how a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    OTHER = "other"
    """Could not be decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of a report."""

    name: str
    suite: str
    """The part of the report that it belongs to."""
    status: Status
    kind: str
    """How binding it is; JUnit's type of a failure, CTRF's tag."""
    message: str = ""
    detail: str = ""
    """Lines below the message of a failure."""
    extra: dict[str, object] = field(default_factory=dict)
    started: float = 0.0
    """Unix time in seconds."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All results of one run against one target."""

    tool: str
    title: str
    environment: dict[str, object]
    cases: tuple[Case, ...]

    def count(self, status: Status) -> int:
        """How many ended so."""
        return sum(case.status is status for case in self.cases)
