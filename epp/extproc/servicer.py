"""The path of a request: receive -> understand -> pick -> answer -> watch the response -> release."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from epp.endpoints.endpoint import HostPort
from epp.extproc.exchange import Exchange, ExchangeKit
from epp.extproc.habits import Habits
from epp.extproc.metadata import plain_host
from epp.extproc.metrics import ExchangeMetrics
from epp.extproc.model_list import ModelList
from epp.extproc.patience import Patience
from epp.extproc.refusal import Refusal, bad_request, internal, no_endpoint, overloaded, too_large, unknown_model
from epp.extproc.retries import Retries
from epp.extproc.rules import ExchangeRules
from epp.extproc.transport.stream import Stream
from epp.prompts.prompt import Request
from epp.scheduling.eligible import NoEndpointError
from epp.scheduling.explain_header import ExplainHeader
from epp.scheduling.models import UnknownModelError
from epp.scheduling.outcome import Ending, Observer, Outcome
from epp.scheduling.scheduler import Pick, Scheduler
from epp.settings import BodyMode

_log = structlog.get_logger(__name__)

_PROGRESS_EVENTS = 32
"""Streamed events between two updates of a reservation."""
_NOT_READ = Request()


class Reader(Protocol):
    """Understands requests; whatever it cannot understand is a request of unknown API."""

    async def read(self, *, path: str, content_type: str, body: bytes, request_id: str, tokens: bool = True) -> Request:
        """What the request asks to be computed, without its prompt unless `tokens` are wanted.

        An empty `path` means that the gateway does not show it.
        """


@dataclass(frozen=True, slots=True)
class ExchangeStatus:
    """The section of /status about exchanges."""

    open: int
    """Streams being served now."""
    begun: int
    """Streams since the start."""
    buffered_bytes: int
    """Request bytes held for picks now."""
    modes: dict[str, int]
    """Streams since the start by `request mode/response mode`, as the gateway announced them."""


class _Visit(msgspec.Struct, kw_only=True):
    """What one stream has come to so far."""

    begun: float
    request: Request
    pick: Pick | None = None
    refusal: Refusal | None = None
    whole_at: float = 0.0
    picked_at: float = 0.0
    headers_at: float | None = None
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
        registry: CollectorRegistry,
        explain: ExplainHeader | None = None,
        model_list: ModelList | None = None,
        retries: Retries | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._scheduler = scheduler
        self._observers = tuple(observers)
        self._explain = explain
        self._model_list = model_list
        self._rules = rules
        self._kit = ExchangeKit(rules)
        self._metrics = ExchangeMetrics(registry)
        self._patience = Patience(rules.pick_timeout_seconds)
        self._retries = retries or Retries()
        self._habits = Habits()
        self._clock = clock
        self._open = 0
        self._metrics.open.set_function(lambda: self._open)
        self._begun = 0
        self._modes: Counter[tuple[BodyMode, BodyMode]] = Counter()
        self._warned: set[BodyMode] = set()
        if rules.conformance_hooks:
            _log.warning("EPP_CONFORMANCE_HOOKS is on: any client can choose its worker; never in production")

    def status(self) -> ExchangeStatus:
        """How many streams there are."""
        modes = {f"{request}/{response}": count for (request, response), count in self._modes.items()}
        return ExchangeStatus(open=self._open, begun=self._begun, buffered_bytes=self._kit.budget.used, modes=modes)

    async def serve(self, stream: Stream) -> None:
        """Serve one stream to its end; whatever ends it, its load is released and its outcome told.

        Raises ProtocolError when the gateway sends what is no ext_proc message.
        """
        exchange = Exchange(self._kit)
        visit = _Visit(begun=self._clock(), request=_NOT_READ)
        self._enter()
        try:
            await self._receive(stream, exchange)
            self._note_modes(exchange)
            if exchange.wants_pick:
                visit.whole_at = self._clock()
                if not self._refused_at_the_door(exchange, visit):
                    visit.request = await self._understand(exchange)
                    if not self._refused_as_bad(exchange, visit):
                        self._pick(exchange, visit)
                await self._answer(stream, exchange, visit)
            await self._watch(stream, exchange, visit)
        finally:
            exchange.close()
            self._release(exchange, visit)
            self._leave()

    async def _receive(self, stream: Stream, exchange: Exchange) -> None:
        """Take messages until there is enough to pick by, or the exchange ends without a pick."""
        while not (exchange.wants_pick or exchange.ended):
            for answer in exchange.receive(await stream.read()):
                await stream.write(answer)

    def _refused_at_the_door(self, exchange: Exchange, visit: _Visit) -> bool:
        """Whether a bound of ours forbids the request, or the answer needs no worker."""
        if self._open > self._rules.max_streams:
            visit.refusal = overloaded(self._rules.max_streams)
        elif self._rules.reject_large_bodies and _body_size(exchange) > self._rules.max_body_bytes:
            visit.refusal = too_large(self._rules.max_body_bytes)
        elif self._model_list is not None:
            visit.refusal = self._model_list.answer(exchange.head.get(":method"), exchange.head.get(":path"))
        return visit.refusal is not None

    def _refused_as_bad(self, exchange: Exchange, visit: _Visit) -> bool:
        """Whether the operator wants bad bodies refused here, and this is one, whole."""
        problem = visit.request.problem
        if problem and self._rules.reject_bad_requests and not exchange.held.full:
            visit.refusal = bad_request(problem)
        return visit.refusal is not None

    async def _understand(self, exchange: Exchange) -> Request:
        """What the request asks for. Too slow, or a fault of ours: then the load alone decides."""
        get = exchange.head.get
        request_id = get("x-request-id")
        if exchange.held.full:
            self._metrics.odd("truncated")
        try:
            return await self._patience.wait(
                self._reader.read(
                    path=get(":path"),
                    content_type=get("content-type"),
                    body=exchange.held.joined(),
                    request_id=request_id,
                    tokens=self._scheduler.reads_prompts,
                )
            )
        except TimeoutError:
            self._metrics.odd("late")
        except Exception:  # noqa: BLE001 - a fault in the reader must not lose a request that can be routed
            self._metrics.odd("internal")
            _log.exception("reading a request failed", request_id=request_id)
        return Request(id=request_id, size=exchange.held.size)

    def _pick(self, exchange: Exchange, visit: _Visit) -> None:
        """Choose an endpoint and reserve its load, without a pause between the two."""
        request = visit.request
        try:
            visit.pick = self._picked(exchange, request)
        except NoEndpointError as error:
            visit.refusal = no_endpoint(str(error))
        except UnknownModelError as error:
            visit.refusal = unknown_model(str(error))
        except Exception:  # noqa: BLE001 - what an odd prompt breaks must not lose a request that can be routed
            _log.exception("picking an endpoint failed", request_id=request.id)
            visit.request = Request(id=request.id, size=request.size)
            visit.pick = self._picked_blindly(exchange, visit.request)
        if self._explain is not None and visit.pick is not None and self._explain.asked(exchange.head.get):
            exchange.explanation = self._explain.explanation(visit.pick.decision)
        visit.picked_at = self._clock()
        self._metrics.picked(visit.picked_at - visit.whole_at)

    def _picked(self, exchange: Exchange, request: Request) -> Pick:
        avoid = self._retries.avoid(request.id, self._clock())
        if avoid:
            self._metrics.odd("retried")
        shown = exchange.response_mode is not BodyMode.NONE
        return self._scheduler.pick(
            request, subset=exchange.head.subset, avoid=avoid, shown=shown, header=exchange.head.get
        )

    def _picked_blindly(self, exchange: Exchange, request: Request) -> Pick | None:
        self._metrics.odd("internal")
        try:
            return self._picked(exchange, request)
        except Exception:  # noqa: BLE001 - the client gets an answer whatever fails here
            return None

    async def _answer(self, stream: Stream, exchange: Exchange, visit: _Visit) -> None:
        """Tell the gateway where the request goes, and send its body on."""
        if visit.pick is not None:
            answers = exchange.answer(visit.pick.decision)
        else:
            refusal = visit.refusal or internal()
            self._metrics.refused(refusal.reason)
            _log.debug("refused", reason=refusal.reason, status=refusal.status, request_id=visit.request.id)
            answers = exchange.refuse(refusal)
        for answer in answers:
            await stream.write(answer)

    async def _watch(self, stream: Stream, exchange: Exchange, visit: _Visit) -> None:
        """Pass on the rest of the request and the response, and keep the reservation true."""
        while not exchange.ended:
            served = exchange.response.served
            answers = exchange.receive(await stream.read())
            if visit.pick is not None and exchange.response.begun:
                if exchange.response.served != served:
                    self._move(visit.pick, visit.request, plain_host(exchange.response.served))
                self._note_progress(exchange, visit, visit.pick)
            for answer in answers:
                await stream.write(answer)

    def _move(self, pick: Pick, request: Request, served: str) -> None:
        """The gateway says who answers; where that is not the pick, the load goes where the work is."""
        if served != pick.decision.endpoint.host_port:
            self._metrics.odd("served_elsewhere")
            self._scheduler.move(pick, request, HostPort(served))

    def _note_progress(self, exchange: Exchange, visit: _Visit, pick: Pick) -> None:
        response = exchange.response
        if visit.headers_at is None:
            visit.headers_at = self._clock()
        if response.first_token and visit.first_token_at is None:
            visit.first_token_at = self._clock()
            pick.reservation.first_token()
        if response.events - visit.events_told >= _PROGRESS_EVENTS:
            pick.reservation.progress(response.events - visit.events_told)
            visit.events_told = response.events

    def _note_modes(self, exchange: Exchange) -> None:
        """Count how gateways call us, and say once what a mode costs."""
        mode = exchange.request_mode
        if mode in (BodyMode.NONE, BodyMode.STREAMED) and mode not in self._warned:
            self._warned.add(mode)
            _log.warning("the gateway shows no body before the pick: prompts are not known", request_body_mode=mode)
        self._modes[mode, exchange.response_mode] += 1

    def _release(self, exchange: Exchange, visit: _Visit) -> None:
        """The one place where a request's load ends."""
        if visit.pick is not None:
            visit.pick.reservation.release()
        quiet = self._clock() - (visit.headers_at or visit.picked_at) if visit.pick is not None else 0.0
        outcome = self._outcome(exchange, visit, unseen=self._habits.unseen(exchange, quiet))
        self._habits.learn(exchange, quiet)
        if visit.pick is not None and _failed(outcome):
            self._retries.failed(visit.request.id, visit.pick.decision.endpoint, self._clock())
        self._metrics.ended(outcome.ending)
        for observer in self._observers:
            try:
                observer.ended(outcome)
            except Exception:  # noqa: BLE001 - one observer's fault must not hide the outcome from the others
                _log.exception("telling an outcome failed", observer=type(observer).__name__)

    def _outcome(self, exchange: Exchange, visit: _Visit, *, unseen: bool) -> Outcome:
        response = exchange.response
        ttft = None
        if response.streamed and visit.first_token_at is not None:
            ttft = visit.first_token_at - visit.picked_at
        return Outcome(
            request=visit.request,
            ending=_ending(exchange, visit, unseen=unseen),
            pick=visit.pick,
            status=response.status if visit.refusal is None else visit.refusal.status,
            usage=response.usage,
            streamed=response.streamed,
            load_report=response.load_report,
            time_to_first_token=ttft,
            seconds=self._clock() - visit.begun,
            served=HostPort(plain_host(response.served)) if response.served else None,
        )

    def _enter(self) -> None:
        self._open += 1
        self._begun += 1

    def _leave(self) -> None:
        self._open -= 1


def _body_size(exchange: Exchange) -> int:
    """Bytes of the body as far as seen, or as announced."""
    announced = exchange.head.get("content-length")
    return max(exchange.held.size, int(announced) if announced.isascii() and announced.isdigit() else 0)


def _failed(outcome: Outcome) -> bool:
    """Whether the picked worker gave no answer, or a 5xx."""
    return outcome.status is None or outcome.status >= 500


def _ending(exchange: Exchange, visit: _Visit, *, unseen: bool) -> Ending:
    if visit.refusal is not None:
        return Ending.REFUSED
    if visit.pick is not None and unseen:
        return Ending.UNSEEN
    response = exchange.response
    if response.ended or (response.begun and exchange.response_mode is BodyMode.NONE):
        # With response body mode NONE the gateway keeps the stream until the response is over.
        return Ending.COMPLETE
    return Ending.ABORTED
