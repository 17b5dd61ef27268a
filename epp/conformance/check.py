"""What a check is, and how it ends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from epp.conformance.lab import Lab
from epp.conformance.verdict import Verdict


class Level(StrEnum):
    """How binding a rule is."""

    MUST = "MUST"
    """The protocol says so, or a gateway in use loses, changes or misroutes the request otherwise."""
    SHOULD = "SHOULD"
    """Some gateway, worker or operator is worse off otherwise."""


class Pool(StrEnum):
    """Which pools of the target a check is about."""

    SERVING = "serving"
    """At least one endpoint is ready."""
    EMPTY = "empty"
    """No endpoint is ready."""
    ANY = "any"


Run = Callable[[Lab], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule and the way to try it; `run` returns when the rule holds, else raises FailedError or SkippedError."""

    name: str
    """subject.rule, stable between versions."""
    level: Level
    rule: str
    source: str
    breach: str
    """What a breach means to a user of the target."""
    pool: Pool
    run: Run

    @property
    def subject(self) -> str:
        """The first part of the name."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one check ended."""

    check: Check
    verdict: Verdict
    seen: str = ""
    """What was seen, or why nothing was; empty when passed."""
    started: float = 0.0
    """Unix time in seconds."""
    seconds: float = 0.0


def check(
    name: str, *, level: Level = Level.MUST, rule: str, source: str, breach: str, pool: Pool = Pool.SERVING
) -> Callable[[Run], Check]:
    """Make a Check of the function below."""
    return lambda run: Check(name=name, level=level, rule=rule, source=source, breach=breach, pool=pool, run=run)
