"""Load that engines report in response headers, in each of ORCA's forms."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp._pb.orca_pb2 import OrcaLoadReport
from epp.endpoints.endpoint import HostPort
from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.prompts.prompt import Request
from epp.scheduling.load_reports import LoadReports, read_load_report
from epp.scheduling.outcome import Ending, Outcome
from tests.scheduling.policies import policy
from tests.scheduling.worlds import endpoint, request_of, world

NAMED = {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}
BINARY = base64.b64encode(OrcaLoadReport(named_metrics=NAMED).SerializeToString(deterministic=True)).decode()
FORMS = [
    "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2.0",
    'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}}',
    '{"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2}}',
    BINARY,
    BINARY.rstrip("="),
    f"BIN {BINARY}",
]


@pytest.mark.parametrize("text", FORMS)
def test_each_form_says_the_same(text):
    assert read_load_report(text) == NAMED


@given(st.text() | st.sampled_from(FORMS).flatmap(lambda form: st.integers(0, len(form)).map(lambda end: form[:end])))
def test_whatever_comes_numbers_are_finite_and_not_negative(text):
    assert all(value >= 0.0 and np.isfinite(value) for value in read_load_report(text).values())


@pytest.mark.parametrize(
    "text", ["JSON [1]", "JSON {", "TEXT a=nan, b=-1, c=inf, d", "BIN ????", "{" + '"a":' * 2000, 'JSON {"a": true}x']
)
def test_nonsense_is_no_report(text):
    assert read_load_report(text) == {}


def test_the_report_counts_at_once_for_the_endpoint_that_sent_it():
    here, metrics = world(policy("round-robin"), endpoints=2), EngineMetrics(stale_seconds=6.0)
    for column in (0, 1):
        metrics.join(column, endpoint(column))
        metrics.note(column, EngineSample(queued=0.0, running=3.0, kv_used=0.1), here.clock.now)
    reports = LoadReports(metrics, here.clock)
    pick = here.scheduler.pick(request_of(10))

    def ended(text: str, served: str | None = None) -> None:
        reports.ended(
            Outcome(
                request=Request(),
                ending=Ending.COMPLETE,
                pick=pick,
                load_report=text,
                served=None if served is None else HostPort(served),
            )
        )

    columns = np.array([0, 1])
    ended(FORMS[0], served="10.9.9.9:1")
    assert metrics.view(columns, here.clock.now).queued.tolist() == [0.0, 0.0]
    ended(FORMS[0])
    view = metrics.view(columns, here.clock.now)
    assert view.queued.tolist() == [2.0, 0.0]
    assert view.kv_used.tolist() == [0.4, 0.1]
    assert view.running.tolist() == [3.0, 3.0]
    here.clock.now += 60.0
    ended(FORMS[0])
    view = metrics.view(columns, here.clock.now)
    assert view.queued[0] == 2.0
    assert np.isnan(view.running[0]), "what the page said is too old by now"
