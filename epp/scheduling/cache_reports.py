"""Tells KV knowledge what engines report of their caches."""

from collections.abc import Callable

from epp.endpoints.endpoint import Endpoint
from epp.prompts.prompt import Prompt
from epp.scheduling.outcome import Outcome


class CacheReports:
    """Passes on the cached tokens of every answer that names them and came from the endpoint that was picked."""

    def __init__(self, reported: Callable[[int, Endpoint, Prompt, int], None]) -> None:
        self._reported = reported

    def ended(self, outcome: Outcome) -> None:
        """One request's end."""
        pick, usage = outcome.pick, outcome.usage
        if pick is None or usage is None or usage.cached_tokens is None:
            return
        if pick.decision.prefill is not None:
            return  # tokens that another worker computed count as cached in the answer
        endpoint = pick.decision.endpoint
        if outcome.served in {None, endpoint.host_port} and len(outcome.request.prompt.tokens):
            self._reported(pick.reservation.column, endpoint, outcome.request.prompt, usage.cached_tokens)
