"""What a numbered check is, and how it can end."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from epp.readiness.chain import Chain


class Mode(StrEnum):
    """What a check needs."""

    OFFLINE = "offline"
    """A snapshot, fresh or recorded; of a recorded one it speaks of the time of capture."""
    PROBE = "probe"
    """A live EPP or worker, which schedules nothing for it."""
    TRAFFIC = "traffic"
    """Requests through the Gateway."""
    DESTRUCTIVE = "destructive"
    """Requests, and somebody who breaks something on purpose."""


class Group(StrEnum):
    """The links of the chain, in order."""

    API = "api"
    GATEWAY = "gateway"
    ROUTE = "route"
    POOL = "pool"
    PICKER = "picker"
    WORKERS = "workers"
    TRAFFIC = "traffic"


class Severity(StrEnum):
    """How bad a problem is."""

    ERROR = "error"
    """Requests fail or go unscheduled."""
    WARNING = "warning"
    """Worse or less safe than it could be."""


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    WARNED = "warned"
    """Passed, with something to look at."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not tried, for a stated reason."""
    OTHER = "other"
    """Could not be decided."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    text: str
    where: str = ""
    """The object, as `Kind namespace/name`."""
    severity: Severity = Severity.ERROR


def warning(text: str, where: str = "") -> Problem:
    """A problem that leaves requests served."""
    return Problem(text, where, Severity.WARNING)


class NotApplicableError(Exception):
    """The check has nothing to look at here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One numbered check, without the way to try it."""

    number: int
    name: str
    """link.rule, stable between versions."""
    mode: Mode
    group: Group
    needs: tuple[int, ...]
    """Checks without which this one says nothing."""
    rule: str
    source: str
    fix: str
    """What to do when it fails."""
    advisory: bool = False
    """Whether it only advises: it never fails, and is not missed when it cannot be decided."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a snapshot."""

    rule: Rule
    run: Callable[[Chain], Iterable[Problem]]
    """May raise UnreadableError and NotApplicableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one check ended."""

    rule: Rule
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    """Why it was skipped, or could not be decided; for a passed one, what was seen."""
    blocked_by: int | None = None
    started: float = field(default=0.0, compare=False)
    """Unix time in seconds."""
    seconds: float = field(default=0.0, compare=False)

    @property
    def text(self) -> str:
        """What a person should read, in one line."""
        return "; ".join(problem.text for problem in self.problems) or self.reason


def check(
    number: int,
    name: str,
    *,
    group: Group,
    needs: tuple[int, ...] = (),
    rule: str,
    source: str,
    fix: str,
    advisory: bool = False,
) -> Callable[[Callable[[Chain], Iterable[Problem]]], Check]:
    """Make a Check of the function below."""
    made = Rule(
        number=number,
        name=name,
        mode=Mode.OFFLINE,
        group=group,
        needs=needs,
        rule=rule,
        source=source,
        fix=fix,
        advisory=advisory,
    )
    return lambda run: Check(made, run)
