"""Predicted against reported cached tokens."""

from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.pool import Pool
from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt, Request, TokenSource
from epp.scheduling.cache_reports import CacheReports
from epp.scheduling.fidelity import Fidelity
from epp.scheduling.outcome import Ending, Outcome, Usage
from epp.scheduling.round_robin import RoundRobin
from epp.scheduling.scheduler import Scheduler

W0 = Endpoint(name="w0", address="10.0.0.1", port=8000)
KNOWN = Request(prompt=Prompt(tokens=np.arange(100, dtype=np.uint32), source=TokenSource.TOKENIZER))


class Holds64:
    """An index that says every worker holds 64 tokens."""

    def match(self, _prompt: Prompt) -> Match:
        return Match(np.array([64], dtype=np.int64))


class World:
    def __init__(self) -> None:
        self.pool = Pool()
        self.scheduler = Scheduler(pool=self.pool, index=Holds64(), policy=RoundRobin())
        self.registry = CollectorRegistry()
        self.fidelity = Fidelity(self.pool, self.registry)
        self.pool.replace([W0])

    def end(self, reported: int | None, request: Request = KNOWN, served: HostPort | None = None) -> None:
        """One request that was predicted to find 64 tokens and found `reported`."""
        pick = self.scheduler.pick(request)
        usage = Usage(cached_tokens=reported)
        self.fidelity.ended(Outcome(request=request, ending=Ending.COMPLETE, pick=pick, usage=usage, served=served))


def test_requests_are_counted_by_how_prediction_and_report_compare() -> None:
    world = World()
    for reported in (64, 64, 48, 80):
        world.end(reported)
    status = world.fidelity.status()
    assert (status.compared, status.equal, status.over, status.under) == (4, 2, 1, 1)
    assert (status.predicted_tokens, status.reported_tokens) == (256, 256)
    assert world.registry.get_sample_value("epp_kv_predictions_total", {"result": "over"}) == 1.0


def test_what_cannot_be_compared_is_not_counted() -> None:
    world = World()
    world.end(None)
    world.end(0, request=Request())
    world.end(0, served=HostPort("10.0.0.9:8000"))
    assert world.fidelity.status().compared == 0


def test_what_another_worker_prefilled_is_neither_compared_nor_taken_as_cached() -> None:
    world = World()
    pick = world.scheduler.pick(KNOWN)
    split = replace(pick, decision=replace(pick.decision, prefill=W0))
    told: list[int] = []
    reports = CacheReports(lambda _column, _endpoint, _prompt, tokens: told.append(tokens))
    for each in (split, pick):
        outcome = Outcome(request=KNOWN, ending=Ending.COMPLETE, pick=each, usage=Usage(cached_tokens=99))
        world.fidelity.ended(outcome)
        reports.ended(outcome)
    assert world.fidelity.status().compared == 1
    assert told == [99]


def test_a_worker_that_is_always_wrong_stands_out_by_name_until_it_leaves() -> None:
    world = World()
    for _ in range(50):
        world.end(0)
    assert world.fidelity.status().mean_error["w0"] == pytest.approx(64.0)
    world.pool.replace([])
    assert world.fidelity.status().mean_error == {}
