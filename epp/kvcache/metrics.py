"""What operators see of KV knowledge in Prometheus."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.kvcache.status import KvStatus


class HasStatus(Protocol):
    """Whoever can say what is known."""

    def status(self) -> KvStatus:
        """The section of `/status`."""


class KvMetrics(Collector):
    """Turns the status section into metrics when they are scraped; nothing is counted twice."""

    def __init__(self, knowledge: HasStatus, registry: CollectorRegistry) -> None:
        self._knowledge = knowledge
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Names are fixed; values come with a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of KV knowledge, summed over ranks."""
        status = self._knowledge.status()
        yield from _gauges(status)
        yield from _counters(status)
        skipped = CounterMetricFamily(
            "epp_kv_events_skipped", "Events that could not be used, by reason.", labels=["reason"]
        )
        for reason, count in status.skipped.items():
            skipped.add_metric([reason], count)
        yield skipped
        yield CounterMetricFamily(
            "epp_kv_unknown_publishers",
            "Messages of engines that connected here, whose topic names no endpoint, or several.",
            status.unknown_publishers,
        )


def _gauges(status: KvStatus) -> Iterator[Metric]:
    connected = sum(rank.connected for rank in status.ranks)
    yield GaugeMetricFamily("epp_kv_streams", "Ranks whose KV events are followed.", len(status.ranks))
    yield GaugeMetricFamily("epp_kv_streams_connected", "Ranks whose publisher is connected now.", connected)
    yield GaugeMetricFamily("epp_kv_blocks", "Blocks held, summed over ranks.", sum(r.blocks for r in status.ranks))
    yield GaugeMetricFamily(
        "epp_kv_confidence",
        "How sure we are of what the least known rank holds, 0 to 1.",
        min((rank.confidence for rank in status.ranks), default=1.0),
    )
    yield GaugeMetricFamily(
        "epp_kv_parked_blocks", "Blocks that wait for their parent.", sum(rank.parked for rank in status.ranks)
    )


def _counters(status: KvStatus) -> Iterator[Metric]:
    for name, what, field in (
        ("epp_kv_messages", "Messages read from live sockets.", "messages"),
        ("epp_kv_bad_messages", "Messages without the frames of a publisher.", "bad_frames"),
        ("epp_kv_batches", "Batches applied in order.", "batches"),
        ("epp_kv_batches_replayed", "Batches that came by replay.", "replayed"),
        ("epp_kv_batches_lost", "Batches that neither came nor could be replayed.", "lost"),
        ("epp_kv_replays", "Replays asked for.", "replays"),
        ("epp_kv_replays_failed", "Replays that nobody answered.", "replays_failed"),
        ("epp_kv_restarts", "Publishers found to be another process than before.", "restarts"),
        ("epp_kv_blocks_stored", "Blocks that events reported as stored.", "stored"),
        ("epp_kv_blocks_removed", "Blocks that events reported as removed.", "removed"),
        (
            "epp_kv_blocks_assumed",
            "Blocks taken as held before an event said so.",
            "assumed",
        ),
        ("epp_kv_blocks_expired", "Assumed blocks that no event named in time.", "expired"),
        ("epp_kv_chains_adopted", "Chains with an unknown parent put in place.", "adopted"),
        ("epp_kv_full_queues", "Times that reading paused for the index.", "full_queues"),
        ("epp_kv_batches_passed_over", "Live batches left to a replay that waited for its turn.", "passed_over"),
        ("epp_kv_faults", "Internal faults while indexing a batch.", "faults"),
    ):
        value = status.gone.get(field, 0) + sum(getattr(rank, field) for rank in status.ranks)
        yield CounterMetricFamily(name, what, value)
