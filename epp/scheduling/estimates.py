"""Load of requests whose end no gateway shows: a guess that expires, kept apart from reservations."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge

from epp.prompts.prompt import Request
from epp.scheduling.load import Load, LoadStatus, Reservation, Work
from epp.scheduling.outcome import Ending, Outcome

_MAX_KEPT = 10_000
_USUAL_OUTPUT = 256
_MAX_OUTPUT = 1024
_SECONDS_PER_TOKEN = 0.02

Later = Callable[[float, Callable[[], None]], object]
"""Calls back after some seconds."""


class Estimates:
    """Takes over where a reservation ends before its request does.

    Some gateways end the stream with the request (NGINX), or at the response headers (Envoy without response body and
    trailers). The reservation ends with its stream, as every one does; an estimate follows it.
    """

    def __init__(self, load: Load, registry: CollectorRegistry, *, later: Later | None = None) -> None:
        self._load = load
        self._later = later
        self._gauge = Gauge(
            "epp_estimated_requests",
            "Requests whose end the gateway does not show, counted as load until their expected end.",
            registry=registry,
        )
        self.count = 0
        """Estimates that count as load now."""

    def ended(self, outcome: Outcome) -> None:
        """Hear the end of an exchange; only one that ended unseen leaves an estimate."""
        if outcome.ending is not Ending.UNSEEN or outcome.pick is None or self.count >= _MAX_KEPT:
            return
        work = replace(outcome.pick.reservation.work, shown=False)
        estimate = self._load.succeed(outcome.pick.reservation, work)
        if estimate is not None:
            self.count += 1
            self._gauge.set(self.count)
            later = self._later or asyncio.get_running_loop().call_later
            later(expected_seconds(outcome.request, work), lambda: self._expire(estimate))

    def status(self) -> LoadStatus:
        """What counts as load now."""
        load = self._load
        return LoadStatus(
            reservations=load.live - self.count,
            estimates=self.count,
            prefill_tokens=int(load.prefill_tokens.sum()),
            decode_tokens=int(load.decode_tokens.sum()),
        )

    def _expire(self, estimate: Reservation) -> None:
        estimate.release()
        self.count -= 1
        self._gauge.set(self.count)


def expected_seconds(request: Request, work: Work) -> float:
    """How long the worker should be busy with the request: its prefill and a usual answer."""
    tokens = min(request.max_output_tokens or _USUAL_OUTPUT, _MAX_OUTPUT)
    return work.prefill_seconds + tokens * _SECONDS_PER_TOKEN
