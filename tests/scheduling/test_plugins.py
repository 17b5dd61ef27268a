"""Rules: what each prefers, how they combine, how users add and configure them."""

import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from epp.endpoints.endpoint import Role
from epp.endpoints.metrics import EngineSample
from epp.scheduling.catalogue import FILTERS, PICKERS, SCORERS, make_filter, make_picker, make_scorer
from epp.scheduling.policies import policy_from
from epp.scheduling.scored import ScoredPolicy, Weighted
from epp.settings import Settings, SettingsError
from tests.scheduling.policies import policy
from tests.scheduling.worlds import World, endpoint, request_of, world

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


def labelled(*labels: dict[str, str]) -> World:
    here = world(policy("random"), endpoints=0)
    here.pool.replace([endpoint(i, labels=each) for i, each in enumerate(labels)])
    return here


def scores(name: str, here: World, *, model: str = "", parameters: dict[str, object] | None = None, **headers: str):
    scorer = make_scorer(name, parameters)
    request = request_of(1000)
    request = type(request)(prompt=request.prompt, stream=True, model=model)
    given = scorer.score(request, here.candidates(request, **headers))
    return None if given is None else np.round(given, 3).tolist()


def test_prefix_scores_the_cached_share():
    here = world(policy("random"), endpoints=3)
    here.index.cached = [0, 500, 250]
    assert scores("prefix", here) == [0.0, 0.5, 0.25]


def test_engine_metrics_score_and_what_is_not_known_is_neutral():
    here = world(policy("random"), endpoints=3)
    candidates = here.candidates(request_of(10))
    for name, column in (("queue", "queued"), ("running", "running")):
        assert make_scorer(name).score(request_of(10), candidates).tolist() == [1.0, 1.0, 1.0]
        candidates = replace(candidates, **{column: np.array([4.0, np.nan, 0.0])})
        assert make_scorer(name).score(request_of(10), candidates).tolist() == [0.0, 0.5, 1.0]
    assert make_scorer("kv").score(request_of(10), candidates) is None
    candidates = replace(candidates, kv_used=np.array([0.25, np.nan, 0.75]))
    assert make_scorer("kv").score(request_of(10), candidates).tolist() == [0.75, 0.5, 0.25]


def test_topology_prefers_the_nearest_label_that_agrees():
    zone = "topology.kubernetes.io/zone"
    here = labelled({zone: "a"}, {zone: "b"}, {"kubernetes.io/hostname": "n1", zone: "b"})
    assert scores("topology", here) is None
    place = f"{zone}=b, kubernetes.io/hostname=n1"
    assert scores("topology", here, x_topology=place) == [0.0, 0.667, 1.0]
    assert scores("topology", here, parameters={"here": {zone: "a"}}) == [0.667, 0.0, 0.0]


def test_context_length_ranges():
    label = "llm-d.ai/context-length-range"
    here = labelled({label: "0-999"}, {label: "1000-4000"}, {})
    assert scores("context-length", here) == [0.0, 1.0, 0.5]
    kept = make_filter("context-length").keep(request_of(1000), here.candidates(request_of(1000)))
    assert kept.tolist() == [False, True, True]


def test_labels_select():
    here = labelled({"tier": "gold", "x": "y"}, {"tier": "silver"})
    assert scores("label-selector", here, parameters={"labels": {"tier": "gold"}}) == [1.0, 0.0]


def test_lora_prefers_where_the_adapter_runs():
    here = world(policy("random"), endpoints=4)
    readings = {
        0: EngineSample(adapters=frozenset({"other"}), adapters_most=1),
        1: EngineSample(adapters=frozenset({"sql"}), adapters_most=2),
        2: EngineSample(adapters=frozenset({"other"}), adapters_most=2),
        3: EngineSample(adapters=frozenset({"other"}), adapters_waiting=frozenset({"sql"}), adapters_most=1),
    }
    request = type(request_of(1))(prompt=request_of(10).prompt, model="sql")
    candidates = here.candidates(request)
    candidates = replace(candidates, sample=readings.get)
    assert make_scorer("lora").score(request, candidates).tolist() == [0.0, 1.0, 0.8, 0.6]
    base = type(request)(prompt=request.prompt, model="base")
    assert make_scorer("lora").score(base, candidates) is None


def test_a_session_stays_until_its_time_is_over_or_its_endpoint_leaves():
    here = world(policy("random"), endpoints=3)
    rule = make_filter("session", {"header": "X-Chat", "ttl_seconds": 60})
    request = request_of(10)
    assert rule.keep(request, here.candidates(request, x_chat="a")) is None
    rule.picked(request, here.candidates(request, x_chat="a"), 2)
    here.clock.now += 59.0
    assert rule.keep(request, here.candidates(request, x_chat="a")).tolist() == [False, False, True]
    assert rule.keep(request, here.candidates(request, x_chat="b")) is None
    here.pool.replace([endpoint(0), endpoint(1), endpoint(2, uid="restarted")])
    assert rule.keep(request, here.candidates(request, x_chat="a")) is None
    here.clock.now += 2.0
    assert rule.keep(request, here.candidates(request, x_chat="a")) is None


def test_slo_keeps_idle_endpoints_for_those_who_need_them():
    here = world(policy("random"), endpoints=3)
    candidates = here.candidates(request_of(10), x_slo_ttft_ms="2000")
    candidates = replace(candidates, wait_seconds=np.array([0.0, 1.5, 8.0]), work_seconds=np.zeros(3))
    assert make_scorer("slo").score(request_of(10), candidates).tolist() == [0.5, 0.875, 0.125]


def test_weights_decide_between_scorers():
    class Fixed:
        def __init__(self, *values: float) -> None:
            self.values = np.array(values)

        def score(self, request, candidates):
            return self.values

    here = world(policy("random"), endpoints=2)
    for weight, winner in ((1.0, 0), (3.0, 1)):
        rules = [Weighted("a", Fixed(1.0, 0.0), 2.0), Weighted("b", Fixed(0.0, 1.0), weight)]
        assert ScoredPolicy(rules, random.Random(1)).pick(request_of(1), here.candidates(request_of(1))).best == winner


def test_pickers():
    here = world(policy("random"), endpoints=3)
    candidates, draw = here.candidates(request_of(1)), random.Random(1)
    values = np.array([0.0, 3.0, 1.0])
    assert make_picker("max-score").choose(values, candidates, draw) == 1
    for name, least in (("weighted-random", 400), ("softmax", 600)):
        counts = Counter(make_picker(name).choose(values, candidates, draw) for _ in range(700))
        assert counts[1] > least
        assert counts[0] < 10
    assert {make_picker("random").choose(values, candidates, draw) for _ in range(50)} == {0, 1, 2}
    assert make_picker("weighted-random").choose(np.zeros(3), candidates, draw) in {0, 1, 2}


def test_a_filter_that_would_leave_nobody_is_ignored(tmp_path):
    path = tmp_path / "epp.yaml"
    rule = "{name: label-selector, parameters: {labels: {tier: gold}}}"
    path.write_text(f"profiles: {{decode: {{filters: [{rule}], scorers: [{{name: least-in-flight}}]}}}}")
    here = world(policy_from(Settings(config_file=path), random.Random(1)), endpoints=3)
    assert len(set(here.names_picked(3, request_of(1)))) == 3
    here.pool.replace([endpoint(0), endpoint(1, labels={"tier": "gold"}), endpoint(2)])
    assert set(here.names_picked(3, request_of(1))) == {"worker-1"}


def test_each_role_has_its_profile_and_the_others_the_settings(tmp_path):
    path = tmp_path / "epp.yaml"
    path.write_text("profiles: {prefill: {policy: round-robin}}")
    settings = Settings(config_file=path, policy="least-tokens")
    assert policy_from(settings, role=Role.PREFILL).name == "round-robin"
    assert policy_from(settings, role=Role.DECODE).name == "least-tokens"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scorers": "prefix:3,quue:2"}, r"EPP_SCORERS.*scorer 'quue'.*did you mean queue\?"),
        ({"scorers": "prefix:many"}, "EPP_SCORERS='prefix:many'.*weight from 0 to 1000"),
        ({"filters": "sesion"}, r"filter 'sesion'.*did you mean session\?"),
        ({"scorers": "prefix", "picker": "best"}, "picker 'best': expected one of"),
        ({"filters": "label-selector"}, "filter 'label-selector': missing a required argument: 'labels'"),
        ({"config_file": Path("/no/such/file")}, "EPP_CONFIG_FILE=/no/such/file: No such file"),
    ],
)
def test_a_mistake_names_the_setting(settings, message):
    with pytest.raises(SettingsError, match=message):
        policy_from(Settings(**settings))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profiles: [", "EPP_CONFIG_FILE="),
        ("profiles: {decoding: {}}", "profiles.decoding"),
        ("profiles: {decode: {scorers: [{name: prefix, weigth: 2}]}}", "profiles.decode.scorers.0.weigth"),
        ("profiles: {decode: {picker: {name: softmax, parameters: {temperature: 0}}}, x: 1}", "profiles.x"),
        (
            "profiles: {decode: {scorers: [{name: prefix}], picker: {name: softmax, parameters: {temperature: 0}}}}",
            "profiles.decode: picker 'softmax': temperature must be above 0",
        ),
    ],
)
def test_a_mistake_in_the_file_names_the_place(tmp_path, text, message):
    path = tmp_path / "epp.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(message)):
        policy_from(Settings(config_file=path))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package that docs/plugins.md tells users to write, installed."""
    (source,), (toml,) = blocks("python"), blocks("toml")
    (tmp_path / "cheap_rules.py").write_text(source)
    info = tmp_path / "cheap_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cheap-rules\nVersion: 1.0\n")
    group, entry = re.fullmatch(r'\[project\.entry-points\."(.*)"\]\n(.*) = ".*"\n', toml).groups()
    assert entry == "cheap"
    (info / "entry_points.txt").write_text(f"[{group}]\n{toml.splitlines()[1].replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("cheap_rules", None)


@pytest.mark.usefixtures("installed")
def test_the_documented_plugin_works_as_written():
    here = world(policy_from(Settings(scorers="cheap:1")), endpoints=0)
    here.pool.replace([endpoint(0, labels={"cost": "4"}), endpoint(1, labels={"cost": "1"})])
    assert set(here.names_picked(3, request_of(9000))) == {"worker-1"}
    here.pool.replace([endpoint(0, labels={"cost": "4"}), endpoint(1)])
    assert len(set(here.names_picked(8, request_of(9000)))) == 2, "without an opinion others decide"


def test_the_documented_profiles_are_valid(tmp_path):
    path = tmp_path / "epp.yaml"
    path.write_text(blocks("yaml")[0])
    assert policy_from(Settings(config_file=path)).name == "scorers"


def test_every_rule_is_documented():
    text = DOCS.read_text()
    assert [name for name in {*SCORERS, *FILTERS, *PICKERS} if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", sorted(set(SCORERS) - {"label-selector"}))
def test_every_scorer_copes_with_one_idle_endpoint_and_no_tokens(name):
    here = world(policy_from(Settings(scorers=name)), endpoints=1)
    assert here.names_picked(2, request_of(0)) == ["worker-0", "worker-0"]


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("queue:2,kv:2", False),
        ("least-in-flight", False),
        ("queue:2,prefix:3", True),
        ("least-tokens", True),
    ],
)
def test_prompts_are_read_only_for_rules_that_look_at_them(text: str, reads: bool):
    assert policy_from(Settings(scorers=text)).reads_prompts is reads
    assert policy_from(Settings(scorers=text, shadow_policy=None, filters="context-length")).reads_prompts
