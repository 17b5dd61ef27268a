"""Metrics of exchanges."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from epp.scheduling.outcome import Ending
from epp.telemetry.tally import Distribution, Tally


class ExchangeMetrics:
    """Counts exchanges and what was odd about them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("epp_exchanges_open", "ext_proc streams being served now.", registry=registry)
        self._ended = Tally(
            "epp_exchanges", "ext_proc streams that ended, by how they ended.", ["ending"], registry=registry
        )
        self._ended.counts.update({(ending,): 0 for ending in Ending})
        self._refused = Counter(
            "epp_refused",
            "Requests answered with an error in place of a pick, by reason.",
            ["reason"],
            registry=registry,
        )
        self._odd = Counter(
            "epp_exchange_oddities",
            "Exchanges that left the usual path: late (understood too slowly, routed by load), truncated (picked by "
            "the beginning of the body), retried (an earlier pick for the same request failed), served_elsewhere (the "
            "gateway went to another endpoint than the pick), internal (a fault of ours, routed anyhow).",
            ["what"],
            registry=registry,
        )
        self._seconds = Distribution(
            "epp_pick_seconds",
            "Seconds from a request that is complete to its pick.",
            bounds=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=registry,
        )

    def ended(self, ending: Ending) -> None:
        """One stream ended."""
        self._ended.counts[(ending,)] += 1

    def picked(self, seconds: float) -> None:
        """One pick was made, `seconds` after its request was complete."""
        self._seconds.observe(seconds)

    def refused(self, reason: str) -> None:
        """One request got an error; `reason` is one of a fixed few words."""
        self._refused.labels(reason).inc()

    def odd(self, what: str) -> None:
        """One exchange left the usual path in the way that `what` names."""
        self._odd.labels(what).inc()
