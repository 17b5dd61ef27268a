"""Priorities and model rewrites: precedence, and shares that add up."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.kubernetes.policies import ModelRewrite, Objective, Rewrites, Split, Target, priorities


def rewrite(name: str, *rules: tuple[list[str], list[str]], pool: str = "pool", created: str = "1") -> ModelRewrite:
    spec = {
        "poolRef": {"name": pool},
        "rules": [
            {
                "matches": [{"model": {"value": model}} for model in models],
                "targets": [{"modelRewrite": target} for target in targets],
            }
            for models, targets in rules
        ],
    }
    return msgspec.convert({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}, ModelRewrite)


def objective(name: str, priority: int | None, pool: str = "pool") -> Objective:
    spec = {"poolRef": {"name": pool}} | ({} if priority is None else {"priority": priority})
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Objective)


def test_priorities_of_this_pool_only():
    found = priorities("pool", [objective("high", 10), objective("plain", None), objective("theirs", 5, pool="other")])
    assert found == {"high": 10, "plain": 0}


def test_the_newer_group_goes_before_the_older():
    assert priorities("pool", [objective("x", 1), objective("x", 2)]) == {"x": 1}


def test_exact_before_generic_then_the_oldest_then_the_first():
    rules = Rewrites(
        "pool",
        [
            rewrite("young", (["m"], ["young"]), ([], ["anything"]), created="2"),
            rewrite("old", (["m"], ["old"]), (["m"], ["second"]), created="1"),
            rewrite("theirs", (["n"], ["theirs"]), pool="other", created="0"),
        ],
    )
    assert rules.target("m", 0.5) == "old"
    assert rules.target("n", 0.5) == "anything"
    assert Rewrites("pool", []).target("m", 0.5) is None


@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=5))
def test_shares_follow_the_weights(weights):
    split = Split(tuple(Target(model_rewrite=str(i), weight=weight) for i, weight in enumerate(weights)))
    draws = 2000
    counts = Counter(split.draw((i + 0.5) / draws) for i in range(draws))
    for i, weight in enumerate(weights):
        assert abs(counts[str(i)] - draws * weight / sum(weights)) <= 2


def test_a_target_without_weight_is_chosen_too():
    split = Split((Target(model_rewrite="a", weight=1), Target(model_rewrite="b")))
    assert {split.draw(0.1), split.draw(0.9)} == {"a", "b"}
