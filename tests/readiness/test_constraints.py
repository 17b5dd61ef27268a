"""Constraints and recipes as AICR writes them."""

import pytest

from epp.readiness.aicr.constraint import Constraint, ConstraintError, constraint, holds
from epp.readiness.aicr.measurements import Unmeasured, judge_constraint
from epp.readiness.aicr.recipe import RecipeError, parse_recipe
from epp.readiness.checks import ALL
from epp.readiness.judge import Exit, exit_code, judge
from epp.readiness.policy import Policy
from epp.readiness.rule import Verdict
from tests.readiness.world import body_of, chain_of, healthy


@pytest.mark.parametrize(
    ("wanted", "actual", "true"),
    [
        (">= 1.34", "v1.34.2", True),
        (">= 1.34", "v1.33.9", False),
        ("> 1.34", "1.34.2", False),  # equal at the lower precision
        ("<= 1.34.2", "1.34", True),
        (">=1.34", "v1.34.1-gke.100+x", True),
        ("== v26.7.0", "26.7.0", True),
        ("!= 26.7", "26.7.1", False),
        ("== ubuntu", "ubuntu", True),
        ("!= ubuntu", "rhel", True),
        ("24.04", "24.04", True),
        ("24.04", "24.4", False),
        ("Ubuntu", "ubuntu", False),
    ],
)
def test_comparisons(wanted: str, actual: str, true: bool):
    assert holds(wanted, actual) is true


@pytest.mark.parametrize(("wanted", "actual"), [(">= 1.2", "latest"), (">= ", "1.2"), ("", "1"), ("< x", "1")])
def test_what_cannot_be_compared(wanted: str, actual: str):
    with pytest.raises(ConstraintError):
        holds(wanted, actual)


@pytest.mark.parametrize(("name", "value"), [("K8s.server", "1"), ("a..b", "1"), ("a.b.c", ""), ("a.b.c", ">= x")])
def test_what_is_no_constraint(name: str, value: str):
    with pytest.raises(ConstraintError, match="constraint"):
        constraint(name, value)


def test_a_key_may_hold_dots():
    assert constraint("OS.sysctl./proc/sys/kernel/osrelease", ">= 6.8").path[2] == "/proc/sys/kernel/osrelease"


def test_a_missing_value_never_passes():
    body = body_of(healthy())
    assert judge_constraint(body, Constraint("K8s.server.version", ">= 1.34")) is None
    assert judge_constraint(body, Constraint("Chain.pool.failure-mode", "== FailClose")) is None
    assert judge_constraint(body, Constraint("Deployment.epp.version", "== 0.1.0")) is None
    assert judge_constraint(body, Constraint("OS.release.ID", "ubuntu")) is Unmeasured.ELSEWHERE
    assert "not in the snapshot" in judge_constraint(body, Constraint("K8s.node.provider", "eks"))
    assert "cannot be compared" in judge_constraint(body, Constraint("Chain.pool.failure-mode", ">= 1"))


def test_as_check_3():
    def third(*given: Constraint):
        results = judge(chain_of(healthy(), Policy(constraints=given)), ALL)
        return next(it for it in results if it.rule.number == 3), exit_code(results)

    result, code = third(Constraint("K8s.server.version", ">= 2.0"))
    assert (result.verdict, code) == (Verdict.FAILED, Exit.NOT_READY)
    assert result.text == "K8s.server.version is v1.37.2, which does not meet >= 2.0"
    assert third(Constraint("K8s.server.version", ">= 1.34"))[0].verdict is Verdict.PASSED
    assert third(Constraint("K8s.server.version", ">= 2.0", advisory=True))[0].verdict is Verdict.WARNED
    result, _ = third(Constraint("OS.release.ID", "ubuntu"))
    assert result.reason == "AICR's own readiness phase judges OS.release.ID"


RECIPE = b"""
kind: RecipeResult
apiVersion: aicr.run/v1beta1
criteria: {service: eks}
constraints:
  - {name: K8s.server.version, value: ">= 1.34"}
  - {name: OS.release.VERSION_ID, value: "24.04", severity: warning}
componentRefs:
  - {name: epp, version: 0.1.0, type: Helm}
  - {name: notes}
validation:
  readiness: {constraints: [{name: K8s.server.version, value: "< 2.0"}]}
  conformance: {checks: [inference-gateway, dra-support]}
"""


def test_a_recipe():
    recipe = parse_recipe(RECIPE, "r.yaml")
    assert [str(one) for one in recipe.constraints] == [
        "K8s.server.version >= 1.34",
        "OS.release.VERSION_ID 24.04",
        "K8s.server.version < 2.0",
        "Deployment.epp.version == 0.1.0",
    ]
    assert [one.advisory for one in recipe.constraints] == [False, True, False, True]
    assert recipe.checks == ("inference-gateway", "dra-support")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"apiVersion: other/v1", "apiVersion 'other/v1'"),
        (RECIPE.replace(b'">= 1.34"', b'">= new"'), "needs a version"),
        (RECIPE.replace(b"constraints:\n", b"constraints: 1\n", 1).replace(b"  - {name: K", b"x: {name: K"), "recipe"),
    ],
)
def test_no_recipe(data: bytes, reason: str):
    with pytest.raises(RecipeError, match=r"^recipe r\.yaml") as refused:
        parse_recipe(data, "r.yaml")
    assert reason in str(refused.value)
