"""Prefill on workers of its own: who decides, what the sidecars are told, whose load counts."""

import random

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.endpoints.endpoint import Endpoint, Role
from epp.endpoints.pool import Pool
from epp.prompts.prompt import Media, Prompt, Request
from epp.scheduling.eligible import NoEndpointError
from epp.scheduling.load import Work
from epp.scheduling.policies import disaggregation_from, policy_from
from epp.scheduling.scheduler import Scheduler
from epp.settings import Settings
from tests.scheduling.worlds import HandClock, ToldIndex, request_of

DECODE, PREFILL, ENCODE = (frozenset({role}) for role in (Role.DECODE, Role.PREFILL, Role.ENCODE))


class Split:
    """Two decode and two prefill workers, unless told otherwise."""

    def __init__(self, *endpoints: Endpoint, **settings: object) -> None:
        self.registry, self.clock, self.index, self.pool = CollectorRegistry(), HandClock(), ToldIndex(), Pool()
        chosen = Settings(**settings)  # type: ignore[arg-type]
        self.pool.replace(endpoints or (*(worker(i, DECODE) for i in (1, 2)), *(worker(i, PREFILL) for i in (3, 4))))
        self.scheduler = Scheduler(
            pool=self.pool,
            index=self.index,
            policy=policy_from(chosen, random.Random(1)),
            clock=self.clock,
            disaggregation=disaggregation_from(chosen, policy_from(chosen, role=Role.PREFILL), self.registry),
        )

    def counted(self, result: str) -> float:
        return self.registry.get_sample_value("epp_disaggregation_total", {"result": result}) or 0.0


def worker(i: int, roles: frozenset[Role], **fields: object) -> Endpoint:
    return Endpoint(name=f"w{i}", address=f"10.0.0.{i}", port=8000, roles=roles, **fields)  # type: ignore[arg-type]


def test_a_long_prompt_is_prefilled_elsewhere_and_the_sidecar_is_told():
    split = Split()
    decision = split.scheduler.pick(request_of(5000)).decision
    assert decision.endpoint.roles == DECODE
    assert decision.prefill.roles == PREFILL
    assert decision.set_headers == (("x-prefiller-host-port", decision.prefill.host_port),)
    assert split.counted("disaggregated") == 1


def test_a_short_or_cached_prompt_is_not():
    split = Split()
    split.index.cached = [4900, 0, 0, 0]
    for tokens in (100, 5000):
        decision = split.scheduler.pick(request_of(tokens)).decision
        assert decision.prefill is None
        assert decision.set_headers == ()
        assert decision.endpoint.roles == DECODE
    assert split.counted("aggregated") == 2


def test_a_prefill_worker_is_never_asked_to_decode():
    split = Split(worker(1, PREFILL), worker(2, ENCODE))
    with pytest.raises(NoEndpointError, match="decodes"):
        split.scheduler.pick(request_of(10))


def test_both_shares_of_load_count_and_each_ends_once():
    split = Split()
    load = split.scheduler.load
    pick = split.scheduler.pick(request_of(5000))
    at, first = pick.reservation.column, pick.reservation.prefill.column
    assert load.in_flight.tolist() == [int(i in (at, first)) for i in range(4)]
    assert load.prefill_tokens.tolist() == [5000 * (i == first) for i in range(4)]
    pick.reservation.first_token()
    pick.reservation.first_token()
    assert load.in_flight.tolist() == [int(i == at) for i in range(4)]
    assert load.decode_tokens.tolist() == [5000 * (i == at) for i in range(4)]
    pick.reservation.release()
    assert not load.in_flight.any()
    assert not load.decode_tokens.any()


@pytest.mark.parametrize("shown", [True, False])
def test_an_end_without_a_first_token_releases_both(shown):
    split = Split()
    pick = split.scheduler.pick(request_of(5000), shown=shown)
    pick.reservation.release()
    load = split.scheduler.load
    assert [values.sum() for values in (load.in_flight, load.prefill_tokens, load.decode_tokens)] == [0, 0, 0]


def test_where_no_response_is_shown_the_prefill_share_ends_by_prediction():
    split = Split()
    pick = split.scheduler.pick(request_of(5000), shown=False)
    split.clock.now += 60.0
    split.scheduler.load.advance(split.clock.now)
    load = split.scheduler.load
    assert load.in_flight.sum() == 1
    assert load.prefill_tokens.sum() == 0
    pick.reservation.release()
    assert load.in_flight.sum() == 0


def test_prefill_goes_to_the_worker_that_holds_the_prompt_and_bursts_spread():
    split = Split(disaggregation="always")
    split.index.cached = [0, 0, 0, 4000]
    assert split.scheduler.pick(request_of(5000)).decision.prefill.name == "w4"
    split.index.cached = []
    picks = [split.scheduler.pick(request_of(5000)).decision for _ in range(20)]
    for names in ([each.prefill.name for each in picks], [each.endpoint.name for each in picks]):
        assert all(8 <= names.count(name) <= 12 for name in set(names))


def test_predicted_splits_only_where_it_is_sooner():
    split = Split(disaggregation="predicted")
    assert split.scheduler.pick(request_of(5000)).decision.prefill is None, "both idle, the transfer costs"
    for column in (0, 1):
        split.scheduler.load.reserve(column, Work(prefill_tokens=1, context_tokens=1, prefill_seconds=9.0))
    assert split.scheduler.pick(request_of(5000)).decision.prefill is not None


@pytest.mark.parametrize(
    ("settings", "counted"), [({}, 2), ({"disaggregation": "never"}, 0), ({"disaggregation_uncached_tokens": 9999}, 0)]
)
def test_a_missing_prefill_worker_is_counted_and_told_once(settings, counted):
    split = Split(worker(1, DECODE), **settings)
    with capture_logs() as logs:
        for _ in range(2):
            assert split.scheduler.pick(request_of(5000)).decision.prefill is None
    assert split.counted("missing") == counted
    assert len(logs) == min(counted, 1)


def test_a_missing_prefill_worker_refuses_where_it_is_so_set():
    split = Split(worker(1, DECODE), prefill_missing="refuse")
    assert split.scheduler.pick(request_of(10)).decision.prefill is None
    with pytest.raises(NoEndpointError, match="no ready endpoint that prefills"):
        split.scheduler.pick(request_of(5000))
    assert split.scheduler.load.in_flight.sum() == 1, "never half a plan"


def test_a_pool_of_workers_for_all_knows_nothing_of_this():
    split = Split(worker(1, DECODE | PREFILL), prefill_missing="refuse", disaggregation="always")
    assert split.scheduler.pick(request_of(5000)).decision.prefill is None
    assert split.counted("missing") == 0


def test_dynamo_workers_are_told_both_ids_and_their_ranks():
    ranks = [worker(i, DECODE, instance_id=77, rank=i - 1) for i in (1, 2)]
    split = Split(*ranks, worker(3, PREFILL, instance_id=2**63 + 5))
    decision = split.scheduler.pick(request_of(10)).decision
    assert dict(decision.set_headers) == {
        "x-dynamo-worker-instance-id": "77",
        "x-dynamo-dp-rank": str(decision.endpoint.rank),
        "x-dynamo-prefill-instance-id": str(2**63 + 5),
        "x-dynamo-routing-mode": "disaggregated",
    }, "their sidecar cannot serve a decode worker alone, however short the prompt"


def test_a_dynamo_decode_worker_without_any_prefill_worker_is_refused():
    split = Split(worker(1, DECODE, instance_id=1))
    with pytest.raises(NoEndpointError, match="prefills"):
        split.scheduler.pick(request_of(10))


def test_an_aggregated_dynamo_worker_is_told_its_id_alone():
    split = Split(worker(1, DECODE | PREFILL, instance_id=5))
    assert split.scheduler.pick(request_of(9000)).decision.set_headers == (("x-dynamo-worker-instance-id", "5"),)


def test_media_go_to_the_least_busy_encoders():
    split = Split(worker(1, DECODE | PREFILL), worker(2, ENCODE), worker(3, ENCODE), worker(4, ENCODE))
    split.scheduler.load.in_flight[1] = 5
    prompt = Prompt(tokens=np.arange(100, dtype=np.uint32), media=(Media("a", 1), Media("b", 2)))
    headers = dict(split.scheduler.pick(Request(prompt=prompt)).decision.set_headers)
    assert headers == {"x-encoder-hosts-ports": "10.0.0.3:8000,10.0.0.4:8000"}
    assert split.scheduler.pick(request_of(100)).decision.set_headers == ()
    unread = dict(split.scheduler.pick(Request(media_items=1)).decision.set_headers)
    assert unread == {"x-encoder-hosts-ports": "10.0.0.3:8000"}, "also where the prompt's tokens are not known"
