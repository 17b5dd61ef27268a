"""What each policy prefers, and how it is named."""

import random
from collections import Counter

import numpy as np
import pytest

from epp.prompts.prompt import Request
from epp.scheduling.eligible import NoEndpointError
from epp.scheduling.predicted_ttft import PredictedTtft
from epp.scheduling.round_robin import RoundRobin
from epp.scheduling.sent_prefixes import SentPrefixes
from epp.settings import SettingsError
from tests.scheduling.policies import NAMES, policy
from tests.scheduling.worlds import endpoint, request_of, world


def predicted() -> PredictedTtft:
    return PredictedTtft(random.Random(1))


def test_round_robin_takes_each_in_turn():
    assert world(RoundRobin(), endpoints=3).names_picked(4, request_of(10)) == [
        "worker-0",
        "worker-1",
        "worker-2",
        "worker-0",
    ]


def test_predicted_ttft_prefers_the_endpoint_that_holds_the_prompt():
    here = world(predicted())
    here.index.cached = [0, 0, 9000, 4000]
    pick = here.scheduler.pick(request_of(10_000))
    assert pick.decision.endpoint.name == "worker-2"
    assert pick.decision.cached_tokens == 9000


def test_predicted_ttft_leaves_a_cached_prompt_when_the_queue_there_is_longer_than_the_saving():
    here = world(predicted(), endpoints=2)
    here.index.cached = [5000, 0]
    names = here.names_picked(8, request_of(10_000))
    assert names[0] == "worker-0"
    assert "worker-1" in names


def test_a_burst_of_equal_requests_spreads_evenly():
    here = world(predicted(), endpoints=4)
    here.index.cached = [900] * 4
    assert set(Counter(here.names_picked(40, request_of(1000))).values()) == {10}


def test_requests_one_after_another_without_hits_do_not_always_take_the_first():
    here = world(predicted(), endpoints=4)
    names = set()
    for _ in range(40):
        pick = here.scheduler.pick(request_of(1000))
        names.add(pick.decision.endpoint.name)
        here.clock.now += 1.0
        pick.reservation.release()
    assert len(names) == 4


def test_a_late_scrape_or_a_long_stream_changes_nothing_in_what_was_promised():
    here = world(predicted(), endpoints=2)
    long = here.scheduler.pick(request_of(100_000)).decision.endpoint.name
    here.clock.now += 0.5
    assert long not in here.names_picked(5, request_of(100))


def test_an_unknown_prompt_is_sized_by_its_bytes():
    here = world(predicted(), endpoints=2)
    first = here.scheduler.pick(Request(size=400_000)).decision.endpoint.name
    assert here.scheduler.load.prefill_tokens.sum() == 100_000
    assert first not in here.names_picked(5, Request(size=400))


def test_approximate_prefix_returns_to_where_the_prompt_was_sent():
    here = world(policy("approximate-prefix"), endpoints=4)
    for first in (0, 100_000, 200_000):
        prompt = request_of(2000, first=first)
        pick = here.scheduler.pick(prompt)
        pick.reservation.release()
        again = here.scheduler.pick(prompt)
        again.reservation.release()
        assert again.decision.endpoint is pick.decision.endpoint


def test_memory_of_prompts_forgets_an_endpoint_that_restarted_and_the_least_recent_prompts():
    sent = SentPrefixes(capacity_blocks=30)
    here = world(RoundRobin(), endpoints=1)

    def share(prompt: Request) -> float:
        candidates = here.candidates(prompt)
        shares = sent.shares(prompt, candidates)
        sent.remember(prompt, candidates, 0)
        return float(shares[0])

    old, new = request_of(64 * 20), request_of(64 * 20, first=50_000)
    assert [share(old), share(old), share(new)] == [0.0, 1.0, 0.0]
    assert share(old) == 0.5, "10 of its 20 blocks made room, the deepest first"
    here.pool.replace([endpoint(0, uid="again")])
    assert share(old) == 0.0


def test_fallbacks_follow_in_order_of_cost():
    here = world(predicted(), endpoints=4, fallbacks=2)
    here.index.cached = [100, 9000, 300, 5000]
    decision = here.scheduler.pick(request_of(10_000)).decision
    assert [decision.endpoint.name, *(each.name for each in decision.fallbacks)] == ["worker-1", "worker-3", "worker-2"]


def test_only_the_subset_is_picked_and_avoided_ones_come_last():
    here = world(predicted(), endpoints=3)
    here.index.cached = [9000, 0, 0]
    request = request_of(10_000)
    assert here.scheduler.pick(request, subset={"10.0.0.2:8000"}).decision.endpoint.name == "worker-1"
    first = endpoint(0).host_port
    assert here.scheduler.pick(request, avoid={first}).decision.endpoint.name != "worker-0"
    assert here.scheduler.pick(request, subset={"10.0.0.1"}, avoid={first}).decision.endpoint.name == "worker-0"
    with pytest.raises(NoEndpointError):
        here.scheduler.pick(request, subset={"10.9.9.9"})


def test_every_policy_can_be_named_and_an_unknown_name_lists_them():
    for name in NAMES:
        assert policy(name).name == name
    with pytest.raises(SettingsError, match=r"EPP_POLICY='predicted-tft'.*did you mean predicted-ttft\?"):
        policy("predicted-tft")


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_works_on_one_endpoint_and_without_tokens(name):
    here = world(policy(name), endpoints=1)
    assert here.names_picked(2, request_of(0)) == ["worker-0", "worker-0"]


def test_a_request_does_not_see_columns_the_index_does_not_know():
    here = world(predicted(), endpoints=3)
    here.index.cached = [10]
    assert np.array_equal(here.index.match(request_of(100).prompt).cached_tokens, [10])
    assert here.scheduler.pick(request_of(100)).decision.cached_tokens == 10


def test_work_costs_more_when_other_replicas_place_requests_too():
    def cost_of_work(elsewhere: int) -> float:
        here = world(predicted(), endpoints=2)
        for _ in range(200):
            pick = here.scheduler.pick(request_of(10_000))
            here.scheduler.load.picks_elsewhere += elsewhere
            here.clock.now += 0.5
            look = here.scheduler.look(request_of(10_000))
            pick.reservation.release()
        seen = look.candidates
        return float(((look.choice.costs - seen.wait_seconds) / seen.work_seconds)[0])

    assert cost_of_work(3) > cost_of_work(0) + 0.1
