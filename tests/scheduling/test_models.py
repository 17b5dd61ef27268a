"""Rewrites by weight, and models that are not served."""

import json
import random
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from epp.prompts.namespace import namespace
from epp.prompts.prompt import Request
from epp.prompts.reader import PromptReader
from epp.scheduling.models import Models, UnknownModelError
from epp.scheduling.scheduler import Scheduler
from epp.settings import Settings, SettingsError
from tests.scheduling.policies import policy
from tests.scheduling.worlds import request_of, world


def split(model: str, number: float) -> str | None:
    return {"chat": "chat-v2" if number < 0.25 else "chat-v1", "same": "same"}.get(model)


def models(adapters: set[str] | None = None, **settings: object) -> Models:
    return Models(Settings(**settings), split, lambda: adapters or set(), random.Random(1))  # type: ignore[arg-type]


def asking(model: str, rewritten: str = "") -> Request:
    return Request(prompt=request_of(10).prompt, model=model, rewritten=rewritten)


def test_a_rewrite_shares_the_requests_by_weight():
    one = models()
    names = Counter(one.serving("chat") for _ in range(2000))
    assert names["chat-v1"] + names["chat-v2"] == 2000
    assert 400 < names["chat-v2"] < 600


def test_the_setting_shares_by_weight_too_and_the_clusters_rules_come_first():
    one = models(model_rewrites="ask=a|b:3, old = hf:org/name, chat=never")
    names = Counter(one.serving("ask") for _ in range(2000))
    assert names["a"] + names["b"] == 2000
    assert 400 < names["a"] < 600
    assert one.serving("old") == "hf:org/name"
    assert one.serving("chat") in {"chat-v1", "chat-v2"}


@pytest.mark.parametrize("text", ["chat", "=x", "a=", "a=b:0", "a=b||c", "a=:3"])
def test_a_wrong_rule_names_the_setting(text):
    with pytest.raises(SettingsError, match=r"EPP_MODEL_REWRITES: .*expected name=model:weight"):
        models(model_rewrites=text)


def test_a_model_without_a_rule_or_rewritten_to_itself_is_left_alone():
    assert [models().serving(name) for name in ("other", "same", "")] == ["other", "same", ""]
    assert models().rewritten(asking("other")) is None
    assert models().rewritten(asking("chat", "chat-v1")) == "chat-v1"


def test_an_unknown_model_is_refused_only_where_it_is_so_set():
    assert models().rewritten(asking("none-such")) is None
    strict = models({"sql-adapter"}, models="chat-v1, chat-v2", unknown_model="refuse")
    assert strict.rewritten(asking("chat", "chat-v1")) == "chat-v1"
    assert strict.rewritten(asking("sql-adapter")) is None
    assert strict.rewritten(asking("")) is None, "a request that names no model is routed"
    with pytest.raises(UnknownModelError, match="'none-such' does not exist"):
        strict.rewritten(asking("none-such"))


def test_refusing_without_a_list_is_a_mistake():
    with pytest.raises(SettingsError, match="EPP_UNKNOWN_MODEL=refuse: needs EPP_MODELS"):
        models(unknown_model="refuse")


def test_a_list_of_models_needs_names():
    with pytest.raises(SettingsError, match="EPP_ANSWER_MODELS=true: needs EPP_MODELS"):
        models(answer_models=True)


def test_clients_may_ask_for_listed_rewritten_and_loaded_names():
    assert models({"sql"}, models="b,a", model_rewrites="chat=a").names() == ["a", "b", "chat", "sql"]


def test_the_decision_carries_the_model_and_a_refused_one_reserves_nothing():
    here = world(policy("round-robin"))
    strict = models(models="chat-v1,chat-v2", unknown_model="refuse")
    scheduler = Scheduler(pool=here.pool, index=here.index, policy=policy("round-robin"), models=strict)
    assert scheduler.pick(asking("chat", "chat-v2")).decision.model == "chat-v2"
    with pytest.raises(UnknownModelError):
        scheduler.pick(asking("none-such"))
    assert scheduler.load.in_flight.sum() == 1


async def test_tokens_and_kv_namespace_are_those_of_the_model_that_serves():
    reader = PromptReader.from_settings(Settings(adapters="sql"), CollectorRegistry())
    reader.rewrite = models(model_rewrites="tables=sql,plain=other").serving

    async def read(model: str) -> Request:
        body = json.dumps({"model": model, "prompt": [1, 2, 3]}).encode()
        return await reader.read(path="/v1/completions", content_type="application/json", body=body, request_id="")

    tables, sql, plain = [await read(name) for name in ("tables", "sql", "plain")]
    assert (tables.model, tables.rewritten, sql.rewritten) == ("tables", "sql", "")
    assert tables.prompt.namespace == sql.prompt.namespace == namespace("sql")
    assert plain.prompt.namespace == namespace()
    reader.close()
