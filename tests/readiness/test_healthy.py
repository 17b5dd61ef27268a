"""No false alarm on a chain that is whole."""

from epp.readiness.checks import ALL
from epp.readiness.judge import Exit, exit_code, headline, judge
from epp.readiness.rule import Verdict
from tests.readiness.world import chain_of, healthy


def test_whole():
    results = judge(chain_of(healthy()), ALL)
    problems = [(it.rule.number, it.verdict, it.text) for it in results if it.verdict in ("failed", "warned", "other")]
    assert problems == []
    skipped = {it.rule.number for it in results if it.verdict is Verdict.SKIPPED}
    assert skipped == {3, 35, 43, 44, 47}
    assert exit_code(results) is Exit.READY
    assert headline(results, offline=True) == "no fault found offline"
    assert [it.rule.number for it in results].count(17) == 1


def test_numbers_names_and_needs():
    numbers = [check.rule.number for check in ALL]
    assert len(set(numbers)) == len(numbers)
    assert len({check.rule.name for check in ALL}) == len(numbers)
    assert {needed for check in ALL for needed in check.rule.needs} <= set(numbers)
    assert set(numbers) == {*range(1, 34), 35, *range(41, 49)}
