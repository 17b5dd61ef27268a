"""Data-parallel ranks behind one port: each has its own cache and load; a header tells the worker which is meant."""

from collections import Counter

from epp.endpoints.endpoint import Endpoint
from epp.scheduling.round_robin import RoundRobin
from tests.scheduling.policies import policy
from tests.scheduling.worlds import World, endpoint, request_of, world


def two_ranks(name: str) -> World:
    here = world(policy(name), endpoints=0)
    here.pool.replace([_rank(0), _rank(1)])
    return here


def _rank(rank: int, uid: str = "") -> Endpoint:
    return endpoint(0, rank=rank, rank_by_header=True, uid=uid)


def rank_of(headers: tuple[tuple[str, str], ...]) -> str:
    return dict(headers)["x-data-parallel-rank"]


def test_the_rank_that_holds_the_prompt_is_named():
    here = two_ranks("predicted-ttft")
    here.index.cached = [0, 9000]
    decision = here.scheduler.pick(request_of(10_000)).decision
    assert (decision.endpoint.host_port, rank_of(decision.set_headers)) == ("10.0.0.1:8000", "1")


def test_each_rank_has_its_own_load():
    here = two_ranks("predicted-ttft")
    picked = [here.scheduler.pick(request_of(1000)).decision for _ in range(10)]
    assert Counter(rank_of(each.set_headers) for each in picked) == {"0": 5, "1": 5}
    assert here.scheduler.load.in_flight.tolist() == [5, 5]


def test_a_worker_that_restarts_comes_back_with_both_ranks_empty():
    here = two_ranks("predicted-ttft")
    here.scheduler.pick(request_of(1000))
    here.pool.replace([_rank(0, "new"), _rank(1, "new")])
    assert here.scheduler.load.in_flight.tolist() == [0, 0]
    assert len(here.pool) == 2


def test_a_worker_with_one_rank_is_told_none():
    assert world(RoundRobin(), endpoints=1).scheduler.pick(request_of(10)).decision.set_headers == ()
