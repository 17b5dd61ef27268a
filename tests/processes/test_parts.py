"""How many processes, how soon again, and what they say together."""

import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from epp.processes.count import processes_of
from epp.processes.merge import SummedMetrics
from epp.processes.port import SharedPort
from epp.processes.slot import Backoff
from epp.settings import SettingsError


@pytest.mark.parametrize(("limit", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", 64)])
def test_auto_is_one_for_each_core_that_may_be_used(tmp_path: Path, limit: str, most: int):
    (tmp_path / "cpu.max").write_text(limit)
    assert 1 <= processes_of("auto", tmp_path / "cpu.max") <= most


@pytest.mark.parametrize("text", ["0", "-1", "two", "65", "1.5"])
def test_a_number_that_is_none_is_named(text: str):
    with pytest.raises(SettingsError, match="EPP_PROCESSES"):
        processes_of(text)


def test_pauses_grow_until_a_process_lives_long():
    backoff = Backoff(first=0.5, most=3.0, long_life=60.0)
    assert [backoff.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [backoff.after(100.0), backoff.after(1.0)] == [0.5, 1.0]


def page(requests: int, seconds: float, open_: int) -> str:
    registry = CollectorRegistry()
    Counter("epp_requests", "Requests.", ["code"], registry=registry).labels("200").inc(requests)
    Histogram("epp_seconds", "Seconds.", buckets=(1.0, 2.0), registry=registry).observe(seconds)
    Gauge("epp_open", "Open.", registry=registry).set(open_)
    return generate_latest(registry).decode()


def test_counters_and_histograms_are_summed_and_gauges_keep_their_process():
    registry = CollectorRegistry()
    registry.register(SummedMetrics({0: page(3, 0.5, 4), 1: page(4, 1.5, 6)}))
    value = registry.get_sample_value
    assert value("epp_requests_total", {"code": "200"}) == 7
    assert value("epp_seconds_bucket", {"le": "1.0"}) == 1
    assert value("epp_seconds_count") == 2
    assert value("epp_seconds_sum") == 2.0
    assert [value("epp_open", {"process": str(i)}) for i in range(2)] == [4, 6]
    assert b"# HELP epp_requests_total Requests." in generate_latest(registry)


def test_a_port_that_somebody_else_has_is_not_shared():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError):
            SharedPort("127.0.0.1", other.getsockname()[1])
