"""Predicted against reported cached tokens."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.pool import Pool
from epp.kvcache.causes import Cause, Evidence
from epp.kvcache.prefix_index import Match
from epp.prompts.namespace import namespace
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
        self.evidence = Evidence(events=True, complete=True, block_size=16, blocks=100)
        self.fidelity = Fidelity(self.pool, self.registry, lambda _column: self.evidence)
        self.pool.replace([W0])

    def end(
        self,
        reported: int | None,
        request: Request = KNOWN,
        served: HostPort | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """One request that was predicted to find 64 tokens and found `reported`."""
        pick = self.scheduler.pick(request)
        usage = Usage(cached_tokens=reported, prompt_tokens=prompt_tokens)
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
    split = structs.replace(pick, decision=structs.replace(pick.decision, prefill=W0))
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


SALTED = Request(
    prompt=Prompt(tokens=np.arange(100, dtype=np.uint32), source=TokenSource.TOKENIZER, namespace=namespace("", "salt"))
)


@pytest.mark.parametrize(
    ("reported", "more", "evidence", "cause"),
    [
        (0, {}, {"events": False}, Cause.NO_EVENTS),
        (40, {}, {}, Cause.BLOCK_SIZE),
        (0, {}, {"event_block_size": 32}, Cause.BLOCK_SIZE),
        (80, {"prompt_tokens": 103}, {}, Cause.TEMPLATE),
        (80, {"prompt_tokens": 100}, {}, Cause.TEMPLATE),
        (80, {}, {"complete": False}, Cause.MISSED),
        (0, {"request": SALTED}, {}, Cause.SALT),
        (0, {}, {}, Cause.UNKNOWN),
    ],
)
def test_the_likely_cause_is_named(reported, more, evidence, cause) -> None:
    world = World()
    world.evidence = replace(world.evidence, **evidence)
    for _ in range(19):
        world.end(reported, **more)
    assert world.fidelity.status().causes == {}
    with capture_logs() as logs:
        for _ in range(5):
            world.end(reported, **more)
    assert world.fidelity.status().causes == {"w0": cause}
    assert [(log["endpoint"], log["cause"]) for log in logs] == [("w0", cause)]
    assert world.registry.get_sample_value("epp_kv_wrong_workers", {"cause": str(cause)}) == 1.0
    world.pool.replace([])
    assert world.fidelity.status().causes == {}
    assert world.registry.get_sample_value("epp_kv_wrong_workers", {"cause": str(cause)}) == 0.0


@pytest.mark.parametrize(("grown", "cause"), [({"restarts": 1}, Cause.RESTART), ({"removed": 150}, Cause.EVICTIONS)])
def test_what_happened_meanwhile_is_a_cause(grown, cause) -> None:
    world = World()
    world.end(64)
    world.evidence = replace(world.evidence, **grown)
    for _ in range(24):
        world.end(0)
    assert world.fidelity.status().causes == {"w0": cause}


def test_another_tokenizer_shows_in_lengths_that_differ_by_more_and_less() -> None:
    world = World()
    for i in range(25):
        world.end(80, prompt_tokens=90 + 3 * i)
    assert world.fidelity.status().causes == {"w0": Cause.TOKENIZER}


def test_a_worker_that_is_right_again_is_no_longer_named() -> None:
    world = World()
    for _ in range(25):
        world.end(0)
    for _ in range(80):
        world.end(64)
    assert world.fidelity.status().causes == {}
