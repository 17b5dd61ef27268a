"""The default policy on recorded workloads: the bars it must hold, and what must not break it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epp.cli import main
from epp.simulate.trace.requests import TraceError, TraceRequest, in_bursts, read_trace, spread_out
from epp.simulate.trace.run import Conditions, run
from epp.simulate.trace.summary import Summary, summarise
from epp.simulate.trace.worker import BlockCache, Worker
from tests.scheduling.policies import build

TRACES = Path(__file__).parents[1] / "data" / "traces"
CONVERSATION, SYNTHETIC = Conditions(cache_blocks=16_384), Conditions(cache_blocks=4096)


def replay(
    name: str, conditions: Conditions, *, policy: str = "predicted-ttft", speed: float = 1.0, first: int | None = None
) -> Summary:
    trace = read_trace(TRACES / f"{name}_trace.jsonl", speed=speed)[:first]
    return summarise(policy, trace, run(trace, build(policy), conditions), conditions)


@pytest.mark.parametrize(
    ("name", "conditions", "speed", "bar"),
    [
        ("conversation", CONVERSATION, 1.0, 1.17),
        ("conversation", CONVERSATION, 1.8, 1.65),
        ("synthetic", SYNTHETIC, 1.0, 0.82),
        ("synthetic", SYNTHETIC, 2.0, 5.9),
    ],
)
def test_mean_time_to_first_token_on_the_public_traces(name, conditions, speed, bar):
    summary = replay(name, conditions, speed=speed)
    assert summary.ttft_mean <= bar
    assert summary.ttft_mean >= summary.ttft_bound
    assert summary.max_over_mean <= 1.4


def test_the_model_gives_the_published_numbers_of_round_robin():
    summary = replay("synthetic", SYNTHETIC, policy="round-robin")
    assert summary.ttft_mean == pytest.approx(6.75, abs=0.01)
    assert summary.ttft_p90 == pytest.approx(17.1, abs=0.05)
    assert summary.hit_rate == pytest.approx(0.169, abs=0.001)
    assert summary.ttft_bound == pytest.approx(0.668, abs=0.001)
    assert summary.hit_rate_bound == pytest.approx(0.651, abs=0.001)


def test_equal_runs_are_equal():
    trace = read_trace(TRACES / "synthetic_trace.jsonl")[:300]
    first, second = (run(trace, build("predicted-ttft"), SYNTHETIC) for _ in range(2))
    assert np.array_equal(first.ttft, second.ttft)
    assert np.array_equal(first.worker, second.worker)


HARD = {
    "rates wrong by two and never seen": replace(SYNTHETIC, tokens_per_second=5000.0, streamed=0.0),
    "half of the answers unary": replace(SYNTHETIC, streamed=0.5),
    "caches known 5 s late": replace(SYNTHETIC, view_age=5.0),
    "rates thought wrong by two at first": replace(SYNTHETIC, wrong_rates=2.0),
    "engine metrics 5 s late": replace(SYNTHETIC, metrics_age=5.0),
    "a worker that answers 500": replace(SYNTHETIC, failed=1),
    "two kinds of hardware": replace(SYNTHETIC, slowness=(2.0, 2.0, 2.0)),
    "one slow worker": replace(SYNTHETIC, slowness=(5.0,)),
    "small caches": replace(SYNTHETIC, cache_blocks=512),
    "four pickers that do not know of each other": replace(SYNTHETIC, replicas=4),
}


@pytest.mark.parametrize("hardship", sorted(HARD))
def test_hard_conditions_leave_it_well_ahead_of_round_robin(hardship):
    conditions = HARD[hardship]
    ours = replay("synthetic", conditions, first=2400)
    theirs = replay("synthetic", conditions, first=2400, policy="round-robin")
    assert ours.ttft_mean < 0.6 * theirs.ttft_mean
    assert ours.max_over_mean <= 2.0


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_replicas_that_share_load_lose_little_against_one(replicas: int):
    one = replay("synthetic", SYNTHETIC, speed=2.0, first=1200)
    shared = replay("synthetic", replace(SYNTHETIC, replicas=replicas, share_seconds=0.002), speed=2.0, first=1200)
    assert shared.ttft_mean <= 1.05 * one.ttft_mean


def test_arrivals_are_spread_within_their_step():
    trace = read_trace(TRACES / "conversation_trace.jsonl")[:40]
    spread = spread_out(trace, 3.0, seed=1)
    assert len({request.arrival for request in spread}) == 40
    assert sorted(request.input_tokens for request in spread) == sorted(request.input_tokens for request in trace)
    assert all(0.0 <= later.arrival < request.arrival + 3.0 for request, later in zip(trace, spread, strict=True))


def test_a_worker_that_fails_costs_few_requests_a_second_try():
    trace = read_trace(TRACES / "synthetic_trace.jsonl")[:1200]
    done = run(trace, build("predicted-ttft"), replace(SYNTHETIC, failed=1))
    assert 7 not in done.worker
    assert 1.0 < done.tries.mean() < 1.03


def test_bursts_repeat_every_so_manyth_request_at_once():
    trace = read_trace(TRACES / "synthetic_trace.jsonl")[:10]
    burst = in_bursts(trace, 3, every=5)
    assert len(burst) == 14
    assert burst[:3] == [trace[0]] * 3


def test_a_burst_of_prompts_with_one_beginning_spreads():
    trace = [TraceRequest(100.0, 20_480, 100, (*range(36), *(1000 + 4 * i + j for j in range(4)))) for i in range(64)]
    summary = summarise("", trace, run(trace, build("predicted-ttft"), SYNTHETIC), SYNTHETIC)
    assert summary.max_over_mean <= 2.0


@pytest.mark.parametrize(
    "prices",
    [
        {"price_least": 0.0, "price_most": 0.0, "price_in_flight": 0.0, "price_context": 0.0},
        {"price_least": 4.0, "price_most": 4.0},
        {"price_in_flight": 1.0, "price_context": 0.1},
        {"exploration": 0.2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_no_setting_in_its_range_piles_the_load_up(name, prices):
    trace = read_trace(TRACES / f"{name}_trace.jsonl", speed=2.0)[:1000]
    done = run(trace, build("predicted-ttft", **prices), SYNTHETIC)
    assert summarise("", trace, done, SYNTHETIC).max_over_mean <= 2.0


def test_a_worker_serves_in_order_and_knows_shared_beginnings():
    worker = Worker(cache_blocks=10, tokens_per_second=1024.0)
    first, second = TraceRequest(0.0, 1024, 5, (1, 2)), TraceRequest(0.0, 1000, 5, (1, 3))
    assert worker.take(first, now=0.0) == pytest.approx(1.0)
    assert worker.take(second, now=0.0) == pytest.approx(1.0 + 488 / 1024)
    assert worker.wait_seconds(1.0) == pytest.approx(488 / 1024)


def test_a_cache_evicts_the_deepest_block_of_the_oldest_prompt_first():
    cache = BlockCache(3)
    old, new = TraceRequest(0.0, 1024, 5, (1, 2)), TraceRequest(0.0, 1024, 5, (3, 4))
    cache.use(old)
    cache.use(new)
    assert cache.hit_tokens(old) == 512
    assert cache.hit_tokens(new) == 1024


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"timestamp": 0}', "line 1.*input_length"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}', "line 1.*1 ids, expected 2"),
        ("", "holds no request"),
    ],
)
def test_a_bad_trace_names_the_line(tmp_path, text, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_the_commands_print_a_row_for_each_policy(capsys):
    path = str(TRACES / "synthetic_trace.jsonl")
    assert (
        main(["simulate", "compare", path, "--first", "50", "--json", "--policies", "predicted-ttft,round-robin"]) == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows] == ["predicted-ttft", "round-robin"]
    assert main(["simulate", "trace", path, "--first", "50", "--policy", "round-robin"]) == 0
    assert "round-robin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-file"], "no-such-file: No such file"),
        ([str(TRACES / "synthetic_trace.jsonl"), "--policy", "fastest"], "EPP_POLICY='fastest': expected one of"),
        ([str(TRACES / "synthetic_trace.jsonl"), "--slowness", "2,x"], "--slowness '2,x': expected numbers"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(capsys, arguments, message):
    assert main(["simulate", "trace", *arguments]) == 2
    assert message in capsys.readouterr().err
