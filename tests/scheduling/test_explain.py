"""Decisions can be looked at, decided again by another policy, and shadowed, without a prompt in sight."""

import json
import random

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.admin.server import AdminServer
from epp.cli import main
from epp.prompts.prompt import Request
from epp.scheduling.explain import DecisionRecord, Recorded, decide_again
from epp.scheduling.shadow import Shadowed, ShadowMetrics
from tests.scheduling.policies import policy
from tests.scheduling.worlds import World, request_of, world


def recorded(**settings: object) -> tuple[World, Recorded]:
    policy_kept = Recorded(policy("predicted-ttft"), keep=3, **settings)  # type: ignore[arg-type]
    here = world(policy_kept, endpoints=3)
    here.index.cached = [0, 900, 0]
    return here, policy_kept


def asked(i: int) -> Request:
    return Request(id=f"r{i}", model="m", prompt=request_of(1000).prompt, stream=True)


def test_the_last_decisions_are_kept_newest_first_with_what_the_policy_saw():
    here, kept = recorded()
    for i in range(5):
        here.scheduler.pick(asked(i))
    records = kept.records()
    assert [record.request_id for record in records] == ["r4", "r3", "r2"]
    newest = records[0]
    chosen = next(row for row in newest.candidates if row.name == newest.chosen)
    assert chosen.cost == min(row.cost for row in newest.candidates)
    assert [row.cached_tokens for row in newest.candidates] == [0, 900, 0]
    assert sum(row.in_flight for row in newest.candidates) == 4, "before its own reservation"
    assert newest.candidates[0].queued is None
    assert newest.candidates[0].confidence == 1.0


def test_another_policy_decides_again_from_what_was_known_then():
    here, kept = recorded()
    for i in range(3):
        here.scheduler.pick(asked(i))
    (record, *_rest) = kept.records()
    saved = msgspec.json.decode(msgspec.json.encode(record), type=DecisionRecord)
    assert decide_again(saved, policy("predicted-ttft")).chosen == record.chosen == "worker-1"
    assert decide_again(saved, policy("least-in-flight")).chosen != "worker-1"


def test_a_sample_goes_to_the_log():
    here, _kept = recorded(log_share=0.5, draw=random.Random(1))
    with capture_logs() as logs:
        for i in range(40):
            here.scheduler.pick(asked(i))
    assert 8 < len(logs) < 32
    assert {log["event"] for log in logs} == {"decision"}
    assert logs[0]["candidates"][0]["name"] == logs[0]["chosen"]


def test_a_shadow_changes_nothing_and_its_metrics_tell():
    class Broken:
        name = "broken"
        reads_prompts = False
        reads_load = True

        def pick(self, request, candidates):
            raise ValueError

    registry = CollectorRegistry()
    metrics = ShadowMetrics(registry)
    inner = Shadowed(policy("predicted-ttft"), policy("round-robin"), metrics)
    here = world(Shadowed(inner, Broken(), metrics), endpoints=3)
    here.index.cached = [0, 900, 0]
    names = []
    for i in range(6):
        pick = here.scheduler.pick(asked(i))
        names.append(pick.decision.endpoint.name)
        pick.reservation.release()
    assert names == ["worker-1"] * 6
    count = registry.get_sample_value
    assert count("epp_shadow_decisions_total", {"shadow": "round-robin", "same": "true"}) == 2
    assert count("epp_shadow_decisions_total", {"shadow": "round-robin", "same": "false"}) == 4
    buckets = [
        count("epp_shadow_ttft_difference_seconds_bucket", {"shadow": "round-robin", "le": le})
        for le in ("0.0", "+Inf")
    ]
    assert buckets == [2, 6], "the others would have been slower"
    assert count("epp_shadow_faults_total", {"shadow": "broken"}) == 6


@pytest.fixture
def saved(tmp_path):
    here, kept = recorded()
    for i in range(3):
        here.scheduler.pick(asked(i))
    path = tmp_path / "decisions.json"
    path.write_bytes(msgspec.json.encode(kept.records()))
    return str(path)


def test_the_command_shows_a_saved_decision_and_what_another_policy_would_do(saved, capsys):
    assert main(["explain", "--file", saved, "--request-id", "r1", "--policy", "round-robin"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "r1: worker-1" in shown
    assert "round-robin: worker-0" in shown
    assert main(["explain", "--file", saved, "--json", "--last", "2"]) == 0
    assert [record["request_id"] for record in json.loads(capsys.readouterr().out)] == ["r2", "r1"]
    assert main(["explain", "--file", saved, "--request-id", "none"]) == 1
    assert main(["explain", "--file", saved, "--policy", "none"]) == 2
    assert main(["explain", "--file", __file__]) == 2


async def test_the_admin_port_serves_the_last_decisions():
    import aiohttp

    here, kept = recorded()
    here.scheduler.pick(asked(1))
    server = AdminServer(lambda: None, kept.records, port=0)
    await server.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{server.port}/decisions") as answer,
        ):
            records = await answer.json()
    finally:
        await server.stop()
    assert [record["request_id"] for record in records] == ["r1"]


def test_a_policy_that_looks_at_no_load_is_recorded_without_it_and_only_its_like_can_decide_again(tmp_path, capsys):
    kept = Recorded(policy("round-robin"), 3)
    here = world(kept, endpoints=3)
    for i in range(4):
        here.scheduler.pick(Request(id=f"r{i}", size=400))
    record = kept.records()[0]
    assert [(row.in_flight, row.wait_seconds, row.kv_used) for row in record.candidates] == [(None, None, None)] * 3
    assert all(row.work_seconds > 0.0 for row in record.candidates)
    assert decide_again(record, policy("round-robin")).chosen == "worker-0"
    path = tmp_path / "decisions.json"
    path.write_bytes(msgspec.json.encode(kept.records()))
    assert main(["explain", "--file", str(path), "--policy", "least-in-flight"]) == 1
    assert "round-robin looked at no load" in capsys.readouterr().err
    assert main(["explain", "--file", str(path)]) == 0
