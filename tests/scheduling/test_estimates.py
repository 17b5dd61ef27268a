"""Load of requests whose end is not seen."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import Endpoint
from epp.prompts.prompt import Request
from epp.scheduling.estimates import Estimates
from epp.scheduling.load import Load, LoadStatus, Work
from epp.scheduling.outcome import Ending, Outcome
from epp.scheduling.scheduler import Decision, Pick

WORKER = Endpoint(name="w", address="10.0.0.1", port=8000)


class World:
    def __init__(self) -> None:
        self.load = Load(lambda: 0.0)
        self.load.join(0, WORKER)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.estimates = Estimates(
            self.load, CollectorRegistry(), later=lambda seconds, then: self.timers.append((seconds, then))
        )

    def end(self, ending: Ending, request: Request | None = None) -> None:
        reservation = self.load.reserve(0, Work(prefill_tokens=100, context_tokens=100, prefill_seconds=2.0))
        reservation.release()
        pick = Pick(Decision(endpoint=WORKER), reservation)
        self.estimates.ended(Outcome(request=request or Request(), ending=ending, pick=pick))


def test_an_unseen_end_leaves_load_for_as_long_as_the_request_should_take() -> None:
    world = World()
    world.end(Ending.UNSEEN, Request(max_output_tokens=100))
    assert world.load.in_flight.tolist() == [1]
    ((seconds, expire),) = world.timers
    assert seconds == 2.0 + 100 * 0.02
    expire()
    assert world.load.in_flight.tolist() == [0]
    assert world.estimates.count == 0


def test_a_seen_end_leaves_nothing() -> None:
    world = World()
    for ending in (Ending.COMPLETE, Ending.ABORTED, Ending.REFUSED):
        world.end(ending)
    assert world.load.in_flight.tolist() == [0]


def test_an_endpoint_that_left_gets_no_estimate() -> None:
    world = World()
    reservation = world.load.reserve(0, Work(prefill_tokens=1, context_tokens=1))
    reservation.release()
    world.load.leave(0, WORKER)
    pick = Pick(Decision(endpoint=WORKER), reservation)
    world.estimates.ended(Outcome(request=Request(), ending=Ending.UNSEEN, pick=pick))
    assert world.load.in_flight.tolist() == [0]


def test_status_tells_reservations_and_estimates_apart():
    world = World()
    kept = world.load.reserve(0, Work(prefill_tokens=7, context_tokens=9))
    world.end(Ending.UNSEEN)
    assert world.estimates.status() == LoadStatus(reservations=1, estimates=1, prefill_tokens=107)
    kept.first_token()
    assert world.estimates.status() == LoadStatus(reservations=1, estimates=1, prefill_tokens=100, decode_tokens=9)
    kept.release()
    world.timers[0][1]()
    assert world.estimates.status() == LoadStatus()
