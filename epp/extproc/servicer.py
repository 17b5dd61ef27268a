"""The path of a request: receive -> understand -> pick -> answer -> watch the response -> release."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from epp.endpoints.endpoint import HostPort
from epp.extproc.body import Budget
from epp.extproc.exchange import Exchange, ExchangeRules
from epp.extproc.pick_answer import PickAnswers
from epp.extproc.refusal import Refusal, internal, no_endpoint
from epp.extproc.transport.stream import Stream
from epp.prompts.prompt import Request
from epp.scheduling.outcome import Ending, Observer, Outcome
from epp.scheduling.scheduler import NoEndpointError, Pick, Scheduler

_log = structlog.get_logger(__name__)

_PROGRESS_EVENTS = 32
"""Streamed events between two updates of a reservation."""


class Reader(Protocol):
    """Understands requests; whatever it cannot understand is a request of unknown API."""

    async def read(self, *, path: str, content_type: str, body: bytes, request_id: str) -> Request:
        """What the request asks to be computed. An empty `path` means that the gateway does not show it."""


@dataclass(frozen=True, slots=True)
class ExchangeStatus:
    """The section of /status about exchanges."""

    open: int
    """Streams being served now."""
    begun: int
    """Streams since the start."""
    buffered_bytes: int
    """Request bytes held for picks now."""


@dataclass(slots=True, kw_only=True)
class _Visit:
    """What one stream has come to so far."""

    begun: float
    request: Request
    pick: Pick | None = None
    refusal: Refusal | None = None
    picked_at: float = 0.0
    first_token_at: float | None = None
    events_told: int = 0


class Servicer:
    """Serves ext_proc streams, whatever carries them."""

    def __init__(
        self,
        *,
        reader: Reader,
        scheduler: Scheduler,
        observers: Sequence[Observer] = (),
        rules: ExchangeRules,
        max_buffered_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._scheduler = scheduler
        self._observers = tuple(observers)
        self._rules = rules
        self._budget = Budget(max_buffered_bytes)
        self._answers = PickAnswers()
        self._clock = clock
        self._open = 0
        self._begun = 0

    def status(self) -> ExchangeStatus:
        """How many streams there are."""
        return ExchangeStatus(open=self._open, begun=self._begun, buffered_bytes=self._budget.used)

    async def serve(self, stream: Stream) -> None:
        """Serve one stream to its end; whatever ends it, its load is released and its outcome told.

        Raises ProtocolError when the gateway sends what is no ext_proc message.
        """
        exchange = Exchange(self._rules, self._budget, self._answers)
        visit = _Visit(begun=self._clock(), request=Request())
        self._open += 1
        self._begun += 1
        try:
            await self._receive(stream, exchange)
            if exchange.wants_pick:
                visit.request = await self._understand(exchange)
                await self._answer(stream, exchange, self._pick(exchange, visit))
            await self._watch(stream, exchange, visit)
        finally:
            self._open -= 1
            exchange.close()
            self._release(exchange, visit)

    async def _receive(self, stream: Stream, exchange: Exchange) -> None:
        """Take messages until there is enough to pick by, or the exchange ends without a pick."""
        while not (exchange.wants_pick or exchange.ended):
            await self._next(stream, exchange)

    async def _understand(self, exchange: Exchange) -> Request:
        """What the request asks for. A fault of ours here costs the prefix knowledge, not the request."""
        head = exchange.head
        try:
            return await self._reader.read(
                path=head.get(":path"),
                content_type=head.get("content-type"),
                body=exchange.held.joined(),
                request_id=head.get("x-request-id"),
            )
        except Exception:  # noqa: BLE001 - a fault in the reader must not lose a request that can be routed
            _log.exception("reading a request failed", request_id=head.get("x-request-id"))
            return Request(id=head.get("x-request-id"), size=exchange.held.size)

    def _pick(self, exchange: Exchange, visit: _Visit) -> Pick | Refusal:
        """Choose an endpoint and reserve its load, without a pause between the two."""
        try:
            visit.pick = self._scheduler.pick(visit.request, subset=exchange.head.subset)
            visit.picked_at = self._clock()
            return visit.pick
        except NoEndpointError as error:
            visit.refusal = no_endpoint(str(error))
        except Exception:  # noqa: BLE001 - the client gets an answer whatever fails here
            _log.exception("picking an endpoint failed", request_id=visit.request.id)
            visit.refusal = internal()
        return visit.refusal

    async def _answer(self, stream: Stream, exchange: Exchange, result: Pick | Refusal) -> None:
        """Tell the gateway where the request goes, and send its body on."""
        answers = exchange.refuse(result) if isinstance(result, Refusal) else exchange.answer(result.decision)
        for answer in answers:
            await stream.write(answer)

    async def _watch(self, stream: Stream, exchange: Exchange, visit: _Visit) -> None:
        """Pass on the rest of the request and the response, and keep the reservation's size true."""
        while not exchange.ended:
            await self._next(stream, exchange)
            if visit.pick is not None and exchange.response.begun:
                self._note_progress(exchange, visit, visit.pick)

    async def _next(self, stream: Stream, exchange: Exchange) -> None:
        message = await stream.read()
        if message is None:
            exchange.half_close()
            return
        for answer in exchange.receive(message):
            await stream.write(answer)

    def _note_progress(self, exchange: Exchange, visit: _Visit, pick: Pick) -> None:
        response = exchange.response
        if response.first_token and visit.first_token_at is None:
            visit.first_token_at = self._clock()
            pick.reservation.first_token()
        if response.events - visit.events_told >= _PROGRESS_EVENTS:
            pick.reservation.progress(response.events - visit.events_told)
            visit.events_told = response.events

    def _release(self, exchange: Exchange, visit: _Visit) -> None:
        """The one place where a request's load ends."""
        if visit.pick is not None:
            visit.pick.reservation.release()
        outcome = self._outcome(exchange, visit)
        for observer in self._observers:
            try:
                observer.ended(outcome)
            except Exception:  # noqa: BLE001 - one observer's fault must not hide the outcome from the others
                _log.exception("telling an outcome failed", observer=type(observer).__name__)

    def _outcome(self, exchange: Exchange, visit: _Visit) -> Outcome:
        response = exchange.response
        ttft = None
        if response.streamed and visit.first_token_at is not None:
            ttft = visit.first_token_at - visit.picked_at
        return Outcome(
            request=visit.request,
            ending=_ending(exchange, visit),
            pick=visit.pick,
            status=response.status if visit.refusal is None else visit.refusal.status,
            usage=response.usage,
            streamed=response.streamed,
            time_to_first_token=ttft,
            seconds=self._clock() - visit.begun,
            served=HostPort(response.served) if response.served else None,
        )


def _ending(exchange: Exchange, visit: _Visit) -> Ending:
    if visit.refusal is not None:
        return Ending.REFUSED
    if exchange.response.ended:
        return Ending.COMPLETE
    return Ending.ABORTED if exchange.response.begun or visit.pick is None else Ending.UNSEEN
