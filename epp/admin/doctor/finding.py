"""One thing that the doctor found."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much it matters."""

    ERROR = "error"
    """Requests fail, or a part of the EPP does nothing."""
    WARNING = "warning"
    """Picks are worse than they could be, or something is less safe."""
    UNKNOWN = "unknown"
    """Could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with `where`, and what to do."""

    severity: Severity
    where: str
    what: str
    fix: str


def error(where: str, what: str, fix: str) -> Finding:
    """Something that makes requests fail, or a part of the EPP idle."""
    return Finding(severity=Severity.ERROR, where=where, what=what, fix=fix)


def warning(where: str, what: str, fix: str) -> Finding:
    """Something that makes picks worse, or the set-up less safe."""
    return Finding(severity=Severity.WARNING, where=where, what=what, fix=fix)


def unknown(where: str, what: str, fix: str) -> Finding:
    """Something that could not be looked at."""
    return Finding(severity=Severity.UNKNOWN, where=where, what=what, fix=fix)
