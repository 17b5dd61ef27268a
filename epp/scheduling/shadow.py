"""A second policy that decides on the side, to see what it would change before it is trusted."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.policy import Choice, Policy

_SECONDS = (-10, -3, -1, -0.3, -0.1, -0.03, 0, 0.03, 0.1, 0.3, 1, 3, 10)


class ShadowMetrics:
    """How often and by how much the two differ."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "epp_shadow_decisions",
            "Decisions of the shadow policy, by whether it chose the same endpoint.",
            ["shadow", "same"],
            registry=registry,
        )
        self.difference = Histogram(
            "epp_shadow_ttft_difference_seconds",
            "Predicted time to first token where the shadow policy would send the request, less where it was sent.",
            ["shadow"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.faults = Counter(
            "epp_shadow_faults", "Decisions at which the shadow policy failed.", ["shadow"], registry=registry
        )


class Shadowed:
    """What `policy` picks; `shadow` sees the same and only its metrics show it."""

    def __init__(self, policy: Policy, shadow: Policy, metrics: ShadowMetrics) -> None:
        self.name = policy.name
        self.reads_prompts = policy.reads_prompts or shadow.reads_prompts
        self.reads_load = True  # the difference in predicted time is of interest, whatever the policies look at
        self._policy = policy
        self._shadow = shadow
        self._metrics = metrics

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """The choice of the first policy, whatever the second does."""
        choice = self._policy.pick(request, candidates)
        try:
            other = self._shadow.pick(request, candidates).best
            seconds = candidates.wait_seconds + candidates.work_seconds
            self._metrics.decisions.labels(self._shadow.name, str(other == choice.best).lower()).inc()
            self._metrics.difference.labels(self._shadow.name).observe(float(seconds[other] - seconds[choice.best]))
        except Exception:  # noqa: BLE001 - a policy on trial must not harm a request
            self._metrics.faults.labels(self._shadow.name).inc()
        return choice
