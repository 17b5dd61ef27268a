"""What several processes say, as one: metrics and the status document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from epp.admin.status import Status

_Labels = tuple[tuple[str, str], ...]


class SummedMetrics(Collector):
    """Counters and histograms are summed. A gauge keeps one sample for each process, under the label `process`."""

    def __init__(self, pages: Mapping[int, str]) -> None:
        """`pages` are the text expositions of the processes, by index."""
        self._pages = pages

    def describe(self) -> Iterable[Metric]:
        """Names are those of the pages."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family for each name."""
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, _Labels], float]] = {}
        for index, page in self._pages.items():
            for family in text_string_to_metric_families(page):
                families.setdefault(family.name, family)
                sums = values.setdefault(family.name, {})
                for sample in family.samples:
                    _add(sums, sample, family.type, index)
        for name, sums in values.items():
            merged = Metric(name, families[name].documentation, families[name].type)
            merged.samples = [Sample(sample, dict(labels), value) for (sample, labels), value in sums.items()]
            yield merged


def _add(sums: dict[tuple[str, _Labels], float], sample: Sample, kind: str, index: int) -> None:
    labels = tuple(sample.labels.items())
    if sample.name.endswith("_created"):
        key = sample.name, labels
        sums[key] = min(sums.get(key, sample.value), sample.value)
    elif kind == "gauge":
        sums[sample.name, (*labels, ("process", str(index)))] = sample.value
    else:
        key = sample.name, labels
        sums[key] = sums.get(key, 0.0) + sample.value


def one_status(statuses: Sequence[Status], *, ready: bool, uptime_seconds: float) -> Status:
    """The status of the first ready process, with what all do together: exchanges, and the verdict."""
    first = next((status for status in statuses if status.process.ready), statuses[0])
    exchanges = [status.exchanges for status in statuses]
    modes: dict[str, int] = {}
    for each in exchanges:
        for mode, count in each.modes.items():
            modes[mode] = modes.get(mode, 0) + count
    return replace(
        first,
        process=replace(
            first.process,
            ready=ready,
            uptime_seconds=uptime_seconds,
            waiting_for=() if ready else first.process.waiting_for,
        ),
        exchanges=replace(
            first.exchanges,
            open=sum(each.open for each in exchanges),
            begun=sum(each.begun for each in exchanges),
            buffered_bytes=sum(each.buffered_bytes for each in exchanges),
            modes=modes,
        ),
    )
