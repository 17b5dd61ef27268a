"""Counts of the path of a request: plain numbers, made into metrics when somebody scrapes.

A counter of `prometheus_client` takes a lock and four calls to add one, its histogram ten; a request is counted a dozen
times. Only for what is counted in one thread.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally(Collector):
    """A counter with labels: `tally[values] += 1`, with one value for each of `labels`."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self.counts: Counter[tuple[str, ...]] = Counter() if labels else Counter({(): 0})
        registry.register(self)

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The counter without its values."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counter now."""
        for family in self.describe():
            for values, count in list(self.counts.items()):
                family.add_metric(values, count)
            yield family


class Distribution(Collector):
    """A histogram without labels; `bounds` rise."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], *, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count one more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The histogram without its values."""
        yield HistogramMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The histogram now."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
