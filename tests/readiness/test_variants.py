"""Every check names its own fault first; what cannot be read is never taken for absent, and never passes."""

import msgspec
import pytest

from epp.readiness.chain import Entry
from epp.readiness.checks import ALL
from epp.readiness.find import TargetError, find
from epp.readiness.judge import Exit, exit_code, first_broken, headline, judge
from epp.readiness.policy import Policy
from epp.readiness.rule import Verdict
from epp.readiness.snapshot import files
from epp.readiness.snapshot.document import EppStatus, State, seal
from tests.readiness import variants
from tests.readiness.variants import Variant
from tests.readiness.world import NOW, World, body_of, chain_of, drop, healthy, meta, one


def judged(world: World, policy: Policy | None = None, **more):
    return judge(chain_of(world, policy, **more), ALL)


@pytest.mark.parametrize("variant", variants.ALL, ids=lambda it: it.name)
def test_named_first_and_correctly(variant: Variant):
    world = healthy()
    variant.break_(world)
    results = judged(world)
    broken = first_broken(results)
    assert broken is not None
    assert (broken.rule.number, variant.says in broken.text) == (variant.number, True), broken.text
    assert exit_code(results) is Exit.NOT_READY
    assert headline(results, offline=True).startswith(f"not ready: {variant.number} ")
    for result in results:
        assert result.verdict is not Verdict.OTHER or result.rule.advisory, result


def test_every_check_that_can_fail_has_its_fault():
    tried = {variant.number for variant in variants.ALL}
    elsewhere = {1, 2, 3, 13, 27, 44}  # input errors, advice, and what needs options: below
    assert tried | elsewhere == {check.rule.number for check in ALL}
    assert len(variants.ALL) >= 40


@pytest.mark.parametrize("variant", variants.ALL, ids=lambda it: it.name)
def test_written_and_read_again_it_says_the_same(variant: Variant):
    world = healthy()
    variant.break_(world)
    body = body_of(world)
    again = files.parse(files.to_json(seal(body)), "x").body
    assert judge(find(again, Policy(), NOW, namespaces=("llm",)), ALL) == judged(world)


def test_effects_are_blocked_by_their_cause():
    world = healthy()
    variants.picker_service_missing(world)
    results = {it.rule.number: it for it in judged(world)}
    assert results[25].verdict is Verdict.SKIPPED
    assert results[25].reason == "blocked by 28 picker.service"
    assert results[33].blocked_by == 28
    assert results[41].verdict is Verdict.PASSED  # not behind the fault


@pytest.mark.parametrize("state", [State.DENIED, State.ERROR, State.UNKNOWN])
@pytest.mark.parametrize(
    ("kind", "number"),
    [("http_routes", 21), ("gateways", 7), ("inference_pools", 22), ("services", 11), ("pods", 41), ("definitions", 4)],
)
def test_not_readable_is_not_absent(kind: str, number: int, state: State):
    policy = Policy()
    body = body_of(healthy(), unread={kind: state})
    ref = find(body_of(healthy()), policy, NOW, namespaces=("llm",))
    chain = find(body, policy, NOW, namespaces=("llm",), pool=ref.pool_ref, gateway=ref.gateway_ref)
    results = judge(chain, ALL)
    assert exit_code(results) is Exit.UNDECIDED
    assert not any(it.verdict is Verdict.FAILED for it in results)
    found = next(it for it in results if it.rule.number == number)
    assert found.verdict is Verdict.OTHER
    assert headline(results, offline=True).startswith("inconclusive")


def test_frontend_path_is_not_applicable():
    world = healthy()
    for kind in ("http_routes", "inference_pools", "gateways"):
        world[kind] = []
    world["dynamo_graphs"] = [
        {"metadata": meta("g", "llm"), "spec": {"services": {"Frontend": {"componentType": "frontend"}}}}
    ]
    results = judged(world)
    later = [it for it in results if it.rule.number > 5]
    assert {it.verdict for it in later} == {Verdict.SKIPPED}
    assert all("not applicable" in it.reason for it in later)
    assert exit_code(results) is Exit.UNDECIDED
    assert "Frontend" in headline(results, offline=False)


def test_operator_managed_and_plain_are_told_apart():
    world = healthy()
    assert chain_of(world).entry is Entry.PLAIN
    variants.dynamo_workers(world)
    chain = chain_of(world)
    assert chain.entry is Entry.OPERATOR
    results = {it.rule.number: it for it in judge(chain, ALL)}
    assert results[43].verdict is Verdict.PASSED


def test_what_the_epp_knows_is_compared_with_the_pool():
    good = EppStatus("1", True, ("10.0.3.1:8000", "10.0.3.2:8000"))
    assert next(it for it in judged(healthy(), status=good) if it.rule.number == 44).verdict is Verdict.PASSED
    bad = EppStatus("1", True, ("10.0.3.1:8000", "10.0.3.9:8000"))
    broken = first_broken(judged(healthy(), status=bad))
    assert broken.rule.number == 44
    assert "10.0.3.2:8000, 10.0.3.9:8000" in broken.text


def test_advice_does_not_fail():
    world = healthy()
    world["inference_pools"].append(
        {"metadata": meta("twin", "llm"), "spec": world["inference_pools"][0]["spec"], "status": {}}
    )
    one(world, "services", "gw-proxy")["spec"]["loadBalancerSourceRanges"] = ["0.0.0.0/0"]
    results = {it.rule.number: it for it in judged(world)}
    assert results[27].verdict is Verdict.WARNED
    assert "w0, w1 belong to pools llm/pool and llm/twin" in results[27].text
    assert results[13].verdict is Verdict.WARNED
    assert exit_code(list(results.values())) is Exit.READY
    strict = {it.rule.number: it for it in judged(world, Policy(scoped=True))}
    assert strict[13].verdict is Verdict.FAILED


def test_an_old_snapshot_is_warned_about():
    body = body_of(healthy())
    old = msgspec.structs.replace(body.metadata, captured_at="2026-11-20T00:00:00+00:00")
    chain = find(msgspec.structs.replace(body, metadata=old), Policy(), NOW, namespaces=("llm",))
    result = next(it for it in judge(chain, ALL) if it.rule.number == 2)
    assert result.verdict is Verdict.WARNED
    assert "264 hours old" in result.text


def test_several_chains_need_a_choice():
    world = healthy()
    drop(world, "http_routes", "chat")
    world["inference_pools"].append(world["inference_pools"][0] | {"metadata": meta("b", "llm")})
    with pytest.raises(TargetError, match=r"several InferencePools: llm/b, llm/pool; choose one by --pool"):
        chain_of(world)


def test_a_grant_lets_a_route_cross():
    world = healthy()
    variants.crossing_without_grant(world)
    world["http_routes"][0]["status"]["parents"][0]["conditions"][1].update(status="True")
    world["reference_grants"] = [
        {
            "metadata": meta("g", "llm"),
            "spec": {
                "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "infra"}],
                "to": [{"group": "inference.networking.k8s.io", "kind": "InferencePool"}],
            },
        }
    ]
    assert first_broken(judged(world)) is None
