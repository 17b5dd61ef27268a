"""Whether a condition is True and fresh."""

from collections.abc import Iterator

from epp.readiness.rule import Problem, warning
from epp.readiness.snapshot.objects import Conditions, condition


def judge(
    what: str, failure: str, conditions: Conditions, name: str, generation: int, *, absent: str, wanted: str = "True"
) -> Iterator[Problem]:
    """What is wrong with condition `name` of the object `what` of that generation.

    `failure` is the sentence for a wrong status, `absent` the one when the condition is missing.
    """
    found = condition(conditions, name)
    if found is None:
        yield Problem(absent, what)
    elif found.status != wanted:
        detail = ": ".join(part for part in (found.reason or f"{name}={found.status}", found.message) if part)
        yield Problem(f"{failure}: {detail}", what)
    elif found.observed_generation is None:
        yield warning(f"{what}: {name} does not say for which generation it is", what)
    elif generation and found.observed_generation < generation:
        stale = f"{name} is for generation {found.observed_generation}, spec is {generation}"
        yield Problem(f"{failure}: stale, {stale}", what)
