"""What a live check is, and how a list of them is run behind the checks of the snapshot."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import aiohttp

from epp.conformance.target import UnreachableError as TargetUnreachableError
from epp.readiness.chain import Entry, UnreadableError
from epp.readiness.judge import FRONTEND, blocked, of_problems, skipped
from epp.readiness.live.lab import Lab
from epp.readiness.rule import Group, Mode, NotApplicableError, Problem, Result, Rule, Verdict

Run = Callable[[Lab], Awaitable[Iterable[Problem]]]
CHECK_SECONDS = 300.0
"""Most that one live check may take."""


@dataclass(frozen=True, slots=True)
class LiveCheck:
    """A check that asks somebody."""

    rule: Rule
    run: Run
    """May raise UnreadableError and NotApplicableError."""


def live_check(
    number: int,
    name: str,
    *,
    mode: Mode,
    group: Group,
    needs: tuple[int, ...],
    rule: str,
    source: str,
    fix: str,
    advisory: bool = False,
) -> Callable[[Run], LiveCheck]:
    """Make a LiveCheck of the function below."""
    made = Rule(
        number=number,
        name=name,
        mode=mode,
        group=group,
        needs=needs,
        rule=rule,
        source=source,
        fix=fix,
        advisory=advisory,
    )
    return lambda run: LiveCheck(made, run)


async def run_live(lab: Lab, checks: Sequence[LiveCheck], results: Sequence[Result]) -> list[Result]:
    """The results with those of `checks` added, one after the other; a live answer replaces a recorded one."""
    done = {result.rule.number: result for result in results}
    for check in checks:
        before = done.pop(check.rule.number, None)
        if before is not None and before.verdict is Verdict.FAILED:
            done[check.rule.number] = before  # what objects already show wrong needs no asking
        elif lab.chain.entry is Entry.FRONTEND:
            done[check.rule.number] = skipped(check.rule, FRONTEND)
        else:
            done[check.rule.number] = blocked(check.rule, done) or await _one(check, lab)
    return list(done.values())


async def _one(check: LiveCheck, lab: Lab) -> Result:
    started, begun = time.time(), time.monotonic()
    lab.seen = ""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            problems = tuple(dict.fromkeys(await check.run(lab)))
        result = of_problems(check.rule, problems, lab.seen)
    except NotApplicableError as problem:
        result = skipped(check.rule, str(problem))
    except (UnreadableError, TargetUnreachableError, aiohttp.ClientError, OSError) as problem:
        result = Result(rule=check.rule, verdict=Verdict.OTHER, reason=str(problem) or type(problem).__name__)
    except TimeoutError:
        result = Result(rule=check.rule, verdict=Verdict.OTHER, reason=f"not done after {CHECK_SECONDS:g} s")
    return Result(
        rule=check.rule,
        verdict=result.verdict,
        problems=result.problems,
        reason=result.reason,
        started=started,
        seconds=time.monotonic() - begun,
    )


def not_asked(checks: Sequence[LiveCheck], results: Sequence[Result], reason: str) -> list[Result]:
    """The results with those of `checks` added as skipped; what the snapshot already decided stays."""
    known = {result.rule.number for result in results}
    return [*results, *(skipped(check.rule, reason) for check in checks if check.rule.number not in known)]
