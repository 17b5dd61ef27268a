"""When the prefill of a request runs on another worker than its decoding."""

from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter

from epp.endpoints.endpoint import Role
from epp.scheduling.candidates import Candidates
from epp.scheduling.eligible import NoEndpointError
from epp.scheduling.policy import Policy
from epp.settings import Decider, Missing

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationRules:
    """The settings of the choice."""

    decider: Decider = Decider.UNCACHED
    uncached_tokens: int = 512
    transfer_seconds: float = 0.000002
    """Time to move the KV blocks of one prompt token."""
    missing: Missing = Missing.AGGREGATE

    def wants(self, decode: Candidates, prefill: Candidates | None) -> bool:
        """Whether the request should be prefilled elsewhere; without `prefill` candidates only its size counts."""
        if self.decider is Decider.PREDICTED and prefill is not None:
            here = float((decode.wait_seconds + decode.work_seconds).min())
            there = float((prefill.wait_seconds + prefill.work_seconds).min())
            return there + self.transfer_seconds * decode.prompt_tokens < here
        if self.decider in (Decider.UNCACHED, Decider.PREDICTED):
            return decode.prompt_tokens - int(decode.cached_tokens.max()) >= self.uncached_tokens
        return self.decider is Decider.ALWAYS


class DisaggregationMetrics:
    """How requests of pools with prefill workers were served."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "epp_disaggregation",
            "Requests of pools with prefill workers: disaggregated, aggregated, or without the prefill worker wanted.",
            ["result"],
            registry=registry,
        )

    def count(self, result: str) -> None:
        """One request more."""
        self._requests.labels(result).inc()


class Disaggregation:
    """Prefill on workers of its own: when, by which policy, and how often it came so."""

    def __init__(self, rules: DisaggregationRules, policy: Policy, metrics: DisaggregationMetrics | None) -> None:
        self.rules = rules
        self.policy = policy
        self._metrics = metrics
        self._warned = False

    def count(self, result: str) -> None:
        """One request of a pool with prefill workers was served this way."""
        self._warned &= result == "missing"
        if self._metrics is not None:
            self._metrics.count(result)

    def none_there(self, decode: Candidates, *, must: bool) -> None:
        """There is no prefill worker: fine for pools that have none, else counted and told once.

        Raises NoEndpointError where the request cannot be served without.
        """
        split = any(Role.PREFILL not in endpoint.roles for endpoint in decode.endpoints)
        if not split or not (must or self.rules.wants(decode, None)):
            return
        self.count("missing")
        if not self._warned:
            self._warned = True
            _log.warning("no ready prefill worker", then="refuse" if must else self.rules.missing.value)
        if must or self.rules.missing is Missing.REFUSE:
            raise NoEndpointError("no ready endpoint that prefills")
