"""`epp shadow`'s path of a request: see it, decide, see where it went, learn from how it ended; answer nothing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from epp.extproc.body import Budget
from epp.extproc.rules import ExchangeRules
from epp.extproc.servicer import ExchangeStatus, Reader
from epp.extproc.transport.stream import Stream
from epp.extproc.watched import Watched
from epp.prompts.prompt import Request
from epp.scheduling.comparison import Comparison
from epp.scheduling.eligible import NoEndpointError
from epp.scheduling.outcome import Ending, Observer, Outcome
from epp.scheduling.scheduler import Look, Pick, Scheduler

_log = structlog.get_logger(__name__)

_SPLIT_HEADERS = ("x-prefiller-host-port", "x-dynamo-prefill-instance-id")
"""Who prefills elsewhere has two waits: such requests load the workers, but are not compared."""


@dataclass(slots=True, kw_only=True)
class _Visit:
    begun: float
    request: Request
    asked_at: float = 0.0
    look: Look | None = None
    pick: Pick | None = None
    first_token_at: float | None = None


class Spectator:
    """Serves streams of a gateway that asks another picker and shows us the traffic.

    The load that it keeps is that of the other picker's choices.
    """

    def __init__(
        self,
        *,
        reader: Reader,
        scheduler: Scheduler,
        comparison: Comparison,
        observers: Sequence[Observer] = (),
        rules: ExchangeRules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._scheduler = scheduler
        self._comparison = comparison
        self._observers = tuple(observers)
        self._rules = rules
        self._budget = Budget(rules.max_buffered_bytes)
        self._clock = clock
        self._open = 0
        self._begun = 0

    def status(self) -> ExchangeStatus:
        """How many streams there are."""
        return ExchangeStatus(open=self._open, begun=self._begun, buffered_bytes=self._budget.used, modes={})

    async def serve(self, stream: Stream) -> None:
        """Watch one stream to its end.

        Raises ProtocolError for a gateway that waits for answers: its failure mode decides, as nothing else can.
        """
        watched = Watched(self._rules.names, self._budget, self._rules.max_body_bytes)
        visit = _Visit(begun=self._clock(), request=Request())
        self._open += 1
        self._begun += 1
        try:
            while not watched.asked and await _next(stream, watched):
                pass
            if watched.asked:
                await self._decide(watched, visit)
                self._follow(watched, visit)
                while not watched.ended and await _next(stream, watched):
                    self._follow(watched, visit)
        finally:
            self._open -= 1
            watched.close()
            self._end(watched, visit)

    async def _decide(self, watched: Watched, visit: _Visit) -> None:
        """What we would have done."""
        get = watched.get
        visit.asked_at = self._clock()
        visit.request = await self._reader.read(
            path=get(":path"),
            content_type=get("content-type"),
            body=watched.held.joined(),
            request_id=get("x-request-id"),
        )
        watched.held.forget()
        try:
            visit.look = self._scheduler.look(visit.request, subset=watched.subset, header=get)
        except NoEndpointError:
            self._comparison.leave_out("no_endpoint")

    def _follow(self, watched: Watched, visit: _Visit) -> None:
        """Put the load where the request went, as soon as that is known, and let it go on."""
        served = watched.served
        if visit.pick is None:
            if visit.look is None or served is None:
                return
            visit.pick = self._scheduler.follow(visit.request, visit.look, served)
        elif served is not None and served != visit.pick.decision.endpoint.host_port and not watched.shows_body:
            # The gateway tried another one after the first.
            visit.pick.reservation.release()
            visit.pick = self._scheduler.follow(visit.request, visit.look, served) if visit.look is not None else None
        if visit.pick is not None and watched.response.first_token and visit.first_token_at is None:
            visit.first_token_at = self._clock()
            visit.pick.reservation.first_token()

    def _end(self, watched: Watched, visit: _Visit) -> None:
        if visit.pick is not None:
            visit.pick.reservation.release()
        if visit.look is None:
            return
        outcome = self._outcome(watched, visit)
        if any(watched.get(name) for name in _SPLIT_HEADERS):
            self._comparison.leave_out("disaggregated")
        elif visit.pick is None:
            self._comparison.leave_out("not_in_pool" if watched.served else "destination_unknown")
        elif watched.response.status is not None and watched.response.status != 200:
            self._comparison.leave_out("not_answered")
        else:
            self._comparison.compare(visit.look, outcome)
        for observer in self._observers:
            observer.ended(outcome)

    def _outcome(self, watched: Watched, visit: _Visit) -> Outcome:
        response, ttft = watched.response, None
        if response.streamed and visit.first_token_at is not None:
            ttft = visit.first_token_at - visit.asked_at
        return Outcome(
            request=visit.request,
            ending=Ending.COMPLETE if watched.ended else Ending.ABORTED,
            pick=visit.pick,
            status=response.status,
            usage=response.usage,
            streamed=response.streamed,
            load_report=response.load_report,
            time_to_first_token=ttft,
            seconds=self._clock() - visit.begun,
            served=watched.served,
        )


async def _next(stream: Stream, watched: Watched) -> bool:
    """Take one message; False when there is none left."""
    message = await stream.read()
    if message is None:
        return False
    watched.receive(message)
    return True
