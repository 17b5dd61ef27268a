"""Tallies are scraped as the library's own counters and histograms are."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from epp.telemetry.tally import Distribution, Tally

BOUNDS = (-1, 0, 0.5, 64)


def scraped(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", 'quoted "b"', "line\nc"]), st.sampled_from(["x", "y"]))))
def test_a_tally_looks_like_a_counter(told: list[tuple[str, str]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = Tally("epp_things", "Things.", ["kind", "side"], registry=ours)
    counter = Counter("epp_things", "Things.", ["kind", "side"], registry=theirs)
    for values in told:
        tally.counts[values] += 1
        counter.labels(*values).inc()
    assert scraped(ours) == scraped(theirs)


def test_a_tally_without_labels_is_there_before_it_counts() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = Tally("epp_things", "Things.", registry=ours)
    counter = Counter("epp_things", "Things.", registry=theirs)
    assert scraped(ours) == scraped(theirs)
    tally.counts[()] += 7
    counter.inc(7)
    assert scraped(ours) == scraped(theirs)


@given(st.lists(st.floats(-100, 100) | st.sampled_from(BOUNDS)))
def test_a_distribution_looks_like_a_histogram(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    distribution = Distribution("epp_sizes", "Sizes.", BOUNDS, registry=ours)
    histogram = Histogram("epp_sizes", "Sizes.", buckets=BOUNDS, registry=theirs)
    for value in values:
        distribution.observe(value)
        histogram.observe(value)
    assert ours.get_sample_value("epp_sizes_sum") == theirs.get_sample_value("epp_sizes_sum") or not values
    buckets = [line for line in scraped(ours) if "_bucket" in line]
    assert buckets == [line for line in scraped(theirs) if "_bucket" in line]
