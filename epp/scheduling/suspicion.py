"""Which outcomes make an endpoint look dead."""

from epp.endpoints.suspects import Suspects
from epp.scheduling.outcome import Ending, Outcome

GATEWAY_ERRORS = frozenset({502, 503, 504})
"""What gateways answer when they cannot reach a worker."""


class Suspicion:
    """Tells outcomes to the suspects: a gateway error, or an exchange that ended before any answer, is suspicious.

    A client that left looks like a silent worker; the probe that follows tells them apart.
    """

    def __init__(self, suspects: Suspects) -> None:
        self._suspects = suspects

    def ended(self, outcome: Outcome) -> None:
        """Judge the picked endpoint by the end of its request."""
        if outcome.pick is None or outcome.ending is Ending.UNSEEN:
            return
        endpoint = outcome.pick.decision.endpoint
        if outcome.served not in {None, endpoint.host_port}:
            return
        if outcome.status is None or outcome.status in GATEWAY_ERRORS:
            self._suspects.suspect(endpoint)
        else:
            self._suspects.answered(endpoint)
