"""Every check holds for a correct picker, and finds a picker that breaks its rule."""

from pathlib import Path

import pytest

from epp.conformance.check import Check, Pool, Result
from epp.conformance.checks import ALL
from epp.conformance.lab import Described
from epp.conformance.run import Plan, passed, run_checks
from epp.conformance.stream import Limits
from epp.conformance.verdict import Verdict

from . import broken_bodies, broken_picks
from .correct import ENDPOINTS, Fault, serving

FAULTS = {**broken_picks.FAULTS, **broken_bodies.FAULTS}
SILENT = ("no answer in time", "stayed open", "no streamed_response", "is a streamed_response")
"""What is said of faults that are found by waiting in vain, so that the wait should be short."""
BY_NAME = {check.name: check for check in ALL}


async def verdicts(fault: Fault, checks: list[Check], *, empty: bool = False, seconds: float) -> list[Result]:
    """Run checks against a picker with this fault."""
    async with serving(fault, () if empty else ENDPOINTS) as port:
        described = Described(endpoints=() if empty else ENDPOINTS, empty=empty, hooks=True)
        limits = Limits(seconds=seconds, check_seconds=60)
        return await run_checks(Plan(target=("127.0.0.1", port), described=described, limits=limits), checks)


def test_every_check_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(ALL)


def test_every_check_has_a_fault_that_it_must_find() -> None:
    assert set(FAULTS) | {"connection.alpn-h2"} == set(BY_NAME)


@pytest.mark.parametrize("name", sorted(FAULTS))
async def test_a_fault_is_found(name: str) -> None:
    fault, words = FAULTS[name]
    check = BY_NAME[name]
    seconds = 1.0 if words in SILENT else 10.0
    (result,) = await verdicts(fault, [check], empty=check.pool is Pool.EMPTY, seconds=seconds)
    assert result.verdict is Verdict.FAILED, result.seen
    assert words in result.seen
    assert passed([result]) is (False if check.level == "MUST" else None)


async def test_a_correct_picker_passes() -> None:
    results = await verdicts(Fault(), list(ALL), seconds=10)
    assert {result.check.name: result.seen for result in results if result.verdict is Verdict.FAILED} == {}
    skipped = {result.check.name for result in results if result.verdict is Verdict.SKIPPED}
    assert skipped == {"connection.alpn-h2", "refusal.empty-pool-503"}
    assert passed(results)


async def test_a_correct_picker_with_an_empty_pool_passes() -> None:
    results = await verdicts(Fault(), list(ALL), empty=True, seconds=10)
    tried = {result.check.name for result in results if result.verdict is Verdict.PASSED}
    assert "refusal.empty-pool-503" in tried
    assert passed(results)


def test_the_documentation_has_every_check_with_its_rule() -> None:
    text = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    rows = [f"| `{check.name}` | {check.level} | {check.rule} | {check.source} |" for check in ALL]
    assert [row for row in rows if row not in text] == []
