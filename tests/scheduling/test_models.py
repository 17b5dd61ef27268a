"""Rewrites by weight, and models that are not served."""

import random
from collections import Counter

import pytest

from epp.scheduling.models import Models, UnknownModelError
from epp.scheduling.scheduler import Scheduler
from epp.settings import Settings, SettingsError
from tests.scheduling.policies import policy
from tests.scheduling.worlds import request_of, world


def split(model: str, number: float) -> str | None:
    return {"chat": "chat-v2" if number < 0.25 else "chat-v1", "same": "same"}.get(model)


def models(adapters: set[str] | None = None, **settings: object) -> Models:
    return Models(Settings(**settings), split, lambda: adapters or set(), random.Random(1))  # type: ignore[arg-type]


def test_a_rewrite_shares_the_requests_by_weight():
    one = models()
    names = Counter(one.target("chat") for _ in range(2000))
    assert names["chat-v1"] + names["chat-v2"] == 2000
    assert 400 < names["chat-v2"] < 600


def test_a_model_without_a_rule_or_rewritten_to_itself_is_left_alone():
    assert [models().target(name) for name in ("other", "same", "")] == [None, None, None]


def test_an_unknown_model_is_refused_only_where_it_is_so_set():
    assert models().target("none-such") is None
    strict = models({"sql-adapter"}, models="chat-v1, chat-v2", unknown_model="refuse")
    assert strict.target("chat") in {"chat-v1", "chat-v2"}
    assert strict.target("sql-adapter") is None
    assert strict.target("") is None, "a request that names no model is routed"
    with pytest.raises(UnknownModelError, match="'none-such' does not exist"):
        strict.target("none-such")


def test_refusing_without_a_list_is_a_mistake():
    with pytest.raises(SettingsError, match="EPP_UNKNOWN_MODEL=refuse: needs EPP_MODELS"):
        models(unknown_model="refuse")


def test_the_decision_carries_the_model_and_a_refused_one_reserves_nothing():
    here = world(policy("round-robin"))
    strict = models(models="chat-v1,chat-v2", unknown_model="refuse")
    scheduler = Scheduler(pool=here.pool, index=here.index, policy=policy("round-robin"), models=strict)
    request = request_of(10)
    decision = scheduler.pick(type(request)(prompt=request.prompt, model="chat")).decision
    assert decision.model in {"chat-v1", "chat-v2"}
    with pytest.raises(UnknownModelError):
        scheduler.pick(type(request)(prompt=request.prompt, model="none-such"))
    assert scheduler.load.in_flight.sum() == 1
