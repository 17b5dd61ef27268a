"""What operators see of the peers in Prometheus."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.peers.status import PeersStatus


class PeersMetrics(Collector):
    """Turns the status section, which is renewed with every beat, into metrics when they are scraped."""

    def __init__(self, status: Callable[[], PeersStatus], registry: CollectorRegistry) -> None:
        self._status = status
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Names are fixed; values come with a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of load sharing."""
        status = self._status()
        peers = status.peers
        yield GaugeMetricFamily("epp_peers_expected", "Other processes that should share load.", len(peers))
        yield GaugeMetricFamily(
            "epp_peers_present", "Other processes whose load counts here.", sum(peer.present for peer in peers)
        )
        yield GaugeMetricFamily(
            "epp_peers_working", "1 while load sharing works both ways with all peers.", int(not status.problem)
        )
        yield GaugeMetricFamily(
            "epp_peer_reservations", "Requests of others that count here.", sum(peer.reservations for peer in peers)
        )
        yield GaugeMetricFamily(
            "epp_peer_lag_seconds",
            "Time that a message takes to the slowest peer, half of a round trip.",
            max((peer.lag_seconds or 0.0 for peer in peers), default=0.0),
        )
        for name, what, value in _counters(status):
            yield CounterMetricFamily(name, what, value)


def _counters(status: PeersStatus) -> Iterator[tuple[str, str, int]]:
    peers = status.peers
    yield "epp_peer_messages_sent", "Messages to all peers.", status.sent
    yield "epp_peer_messages_received", "Messages from peers.", status.received
    yield "epp_peer_messages_lost", "Messages of present peers that did not come.", sum(peer.lost for peer in peers)
    yield "epp_peer_messages_bad", "What came and was no message of ours.", status.bad
    yield (
        "epp_peer_keys_refused",
        "Connections whose key was refused; most wrong keys fail before that, unseen, and show as silence.",
        status.refused_keys,
    )
    yield "epp_peer_prompts_told", "Prompts of others that counted here at once.", status.prompts_told
    yield (
        "epp_peer_prompts_foreign",
        "Prompts of others that say nothing here, as their prefix keys have another secret.",
        status.prompts_foreign,
    )
    yield "epp_peers_vanished", "Times that a peer fell silent and its load was dropped.", status.vanished
