"""Runs checks over a chain, each behind the ones it needs, and sums up."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from epp.readiness.chain import Chain, Entry, UnreadableError
from epp.readiness.rule import Check, Group, NotApplicableError, Problem, Result, Rule, Severity, Verdict

FRONTEND = "not applicable: Dynamo's Frontend is the entry, without Gateway and EPP"
GOOD = (Verdict.PASSED, Verdict.WARNED)


class Exit(IntEnum):
    """Exit codes of `epp validate`."""

    READY = 0
    NOT_READY = 1
    BAD_INPUT = 2
    UNDECIDED = 3


def judge(chain: Chain, checks: Sequence[Check]) -> list[Result]:
    """The results of all `checks`, by number; needed ones are tried first."""
    by_number = {check.rule.number: check for check in checks}
    done: dict[int, Result] = {}

    def settle(number: int) -> None:
        check = by_number[number]
        for needed in check.rule.needs:
            if needed not in done and needed in by_number:
                settle(needed)
        done[number] = _one(chain, check, done)

    for number in sorted(by_number):
        if number not in done:
            settle(number)
    return list(done.values())


def _one(chain: Chain, check: Check, done: Mapping[int, Result]) -> Result:
    rule = check.rule
    if chain.entry is Entry.FRONTEND and rule.group is not Group.API:
        return skipped(rule, FRONTEND)
    return blocked(rule, done) or verdict(rule, lambda: check.run(chain))


def blocked(rule: Rule, done: Mapping[int, Result]) -> Result | None:
    """The result of a check that cannot be tried since one that it needs did not pass; None when it can."""
    for number in rule.needs:
        needed = done.get(number)
        if needed is None or needed.verdict in GOOD:
            continue
        if needed.verdict is Verdict.FAILED:
            return skipped(rule, f"blocked by {number} {needed.rule.name}", number)
        if needed.verdict is Verdict.OTHER:
            text = f"unknown, since {number} {needed.rule.name} could not be decided"
            return Result(rule=rule, verdict=Verdict.OTHER, reason=text, blocked_by=number, started=time.time())
        if needed.blocked_by is not None:
            return skipped(rule, needed.reason, needed.blocked_by)
    return None


def verdict(rule: Rule, run: Callable[[], Iterable[Problem]]) -> Result:
    """Run a check and say how it ended; whatever goes wrong in it, the others still run."""
    started, begun = time.time(), time.monotonic()
    try:
        result = of_problems(rule, tuple(dict.fromkeys(run())))
    except UnreadableError as problem:
        result = Result(rule=rule, verdict=Verdict.OTHER, reason=str(problem))
    except NotApplicableError as problem:
        result = skipped(rule, str(problem))
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        result = Result(rule=rule, verdict=Verdict.OTHER, reason=f"internal: {type(problem).__name__}: {problem}")
    return Result(
        rule=rule,
        verdict=result.verdict,
        problems=result.problems,
        reason=result.reason,
        started=started,
        seconds=time.monotonic() - begun,
    )


def of_problems(rule: Rule, problems: tuple[Problem, ...], seen: str = "") -> Result:
    """The result of a check that was tried."""
    errors = any(problem.severity is Severity.ERROR for problem in problems) and not rule.advisory
    how = Verdict.FAILED if errors else Verdict.WARNED if problems else Verdict.PASSED
    return Result(rule=rule, verdict=how, problems=problems, reason=seen)


def skipped(rule: Rule, reason: str, blocked_by: int | None = None) -> Result:
    """The result of a check that was not tried."""
    return Result(rule=rule, verdict=Verdict.SKIPPED, reason=reason, blocked_by=blocked_by, started=time.time())


def first_broken(results: Sequence[Result]) -> Result | None:
    """The failed check that stands first in the chain of needs: no other failed one is behind it."""
    return next((result for result in results if result.verdict is Verdict.FAILED), None)


def exit_code(results: Sequence[Result]) -> Exit:
    """Not ready beats undecided; a run in which no link of the chain passed decides nothing."""
    if any(result.verdict is Verdict.FAILED for result in results):
        return Exit.NOT_READY
    if any(result.verdict is Verdict.OTHER and not result.rule.advisory for result in results):
        return Exit.UNDECIDED
    links = [result for result in results if result.rule.group is not Group.API]
    return Exit.READY if any(result.verdict in GOOD for result in links) else Exit.UNDECIDED


def headline(results: Sequence[Result], *, offline: bool) -> str:
    """The whole in one line; offline never says ready."""
    broken = first_broken(results)
    if broken is not None:
        return f"not ready: {broken.rule.number} {broken.rule.name}: {broken.text}"
    if exit_code(results) is Exit.UNDECIDED:
        unknown = next((it for it in results if it.verdict is Verdict.OTHER and not it.rule.advisory), None)
        if unknown is not None:
            return f"inconclusive: {unknown.rule.number} {unknown.rule.name}: {unknown.reason}"
        if any(it.reason == FRONTEND for it in results):
            return FRONTEND
        return "inconclusive: no link of the chain was tried"
    return "no fault found offline" if offline else "ready"
