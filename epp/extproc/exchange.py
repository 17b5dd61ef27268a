"""One ext_proc stream as a state machine: serialised messages in, serialised answers out.

It does no I/O, knows no clock and never waits; `docs/protocol.md` draws its states. The servicer feeds `receive`,
picks an endpoint once `wants_pick` is true, gives it to `answer`, and ends the RPC once `ended` is true.
"""

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from epp._pb.external_processor_pb2 import ProcessingRequest
from epp.extproc import wire
from epp.extproc.body import Budget, HeldBody
from epp.extproc.hygiene import STEERING_HEADER, removed_headers
from epp.extproc.metadata import Headers, listed, plain_host
from epp.extproc.pick_answer import PickAnswers, explained, served_echo
from epp.extproc.refusal import Refusal, immediate_response
from epp.extproc.request_side import Duplex, RequestSide, Turnwise
from epp.extproc.response import ResponseWatch
from epp.extproc.rules import ExchangeRules
from epp.extproc.wire import Place
from epp.scheduling.explain_header import ASKING_HEADER
from epp.scheduling.scheduler import Decision
from epp.settings import BodyMode

_ANNOUNCED = {
    0: BodyMode.NONE,
    1: BodyMode.STREAMED,
    2: BodyMode.BUFFERED,
    3: BodyMode.BUFFERED_PARTIAL,
    4: BodyMode.FULL_DUPLEX_STREAMED,
}
_DUPLEX = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.AUTO)


_NO_HEADERS = Headers()


class ProtocolError(Exception):
    """The peer sent bytes that are no ext_proc message."""


@dataclass(slots=True)
class RequestHead:
    """What the gateway says about the request before its body."""

    headers: Headers = _NO_HEADERS
    """Without the routing headers that clients are not trusted with."""
    subset: tuple[str, ...] | None = None
    """The only endpoints allowed, as `ip:port` or `ip`; None: all."""

    def get(self, name: str) -> str:
        """The header's value, empty when absent."""
        return self.headers.get(name)


class ExchangeKit:
    """What all exchanges share."""

    def __init__(self, rules: ExchangeRules) -> None:
        self.rules = rules
        self.budget = Budget(rules.max_buffered_bytes)
        self.answers = PickAnswers(rules.names, trusted=rules.trusted, echo_served=rules.conformance_hooks)
        self.untrusted = frozenset(removed_headers(rules.names, rules.trusted)) - {ASKING_HEADER}
        if rules.conformance_hooks:
            self.untrusted -= {STEERING_HEADER}


class Exchange:
    """One HTTP request and its response, as the gateway shows them."""

    def __init__(self, kit: ExchangeKit) -> None:
        self.head = RequestHead()
        self.held = HeldBody(kit.budget, kit.rules.max_body_bytes)
        self.response = ResponseWatch()
        self.ended = False
        """Nothing more is to be said: the RPC must end now."""
        self.request_mode = kit.rules.request_body_mode
        self.response_mode = kit.rules.response_body_mode
        self.observed = False
        """The gateway only shows us the traffic and ignores every answer."""
        self.explanation = ""
        """What the client may know of the decision, in a response header; empty: nothing."""
        self._kit = kit
        self._request: RequestSide | None = None
        self._picked = False

    @property
    def wants_pick(self) -> bool:
        """The request is as complete as it will get: time to call `answer` or `refuse`."""
        return self._request is not None and self._request.wants_pick

    def receive(self, message: bytes | None) -> list[bytes]:
        """Take the gateway's next message and return the answers to send at once, in order.

        None: it will send no more; all that it asked is answered, or will never be complete. Raises ProtocolError when
        the bytes are no ProcessingRequest.
        """
        if message is None:
            self.close()
            return []
        try:
            request = ProcessingRequest.FromString(message)
        except DecodeError:
            raise ProtocolError("not an ext_proc ProcessingRequest") from None
        side = self._request or self._begin(request)
        kind = request.WhichOneof("request")
        if kind is None or self.observed:
            return []
        answers = _HANDLERS[kind](self, side, request)
        if self.response.ended:
            self._end_if_all_is_said(side)
        return answers

    def answer(self, decision: Decision) -> list[bytes]:
        """The answers that carry the pick, and all that were held for it."""
        assert self._request is not None
        self._picked = True
        if decision.model is not None and not self.held.full:
            self.held.rewrite_model(decision.model)
        answers = self._request.answer(decision)
        if self.response.ended:
            self._end_if_all_is_said(self._request)
        return answers

    def refuse(self, refusal: Refusal) -> list[bytes]:
        """The error in place of a worker, which ends the exchange; nothing once a response has begun."""
        self.close()
        if self.response.begun or self.observed:
            return []
        get = self.head.get
        return [
            immediate_response(
                refusal, request_id=get("x-request-id"), path=get(":path"), content_type=get("content-type")
            )
        ]

    def close(self) -> None:
        """The stream is over, for whatever reason; lets go of what it held."""
        self.ended = True
        self.held.forget()

    def _begin(self, request: ProcessingRequest) -> RequestSide:
        """Learn from the first message how this gateway wants its answers."""
        if request.HasField("protocol_config"):
            config = request.protocol_config
            self.request_mode = _ANNOUNCED.get(config.request_body_mode, BodyMode.AUTO)
            self.response_mode = _ANNOUNCED.get(config.response_body_mode, BodyMode.AUTO)
        self.observed = request.observability_mode
        names = self._kit.rules.names
        self._limit_to(listed(request, names.subset_namespace, names.subset))
        if self.request_mode in _DUPLEX:
            self._request = Duplex(self.held, self._kit.answers)
        else:
            self._request = Turnwise(self.held, self._kit.answers, self.request_mode)
        return self._request

    def _limit_to(self, entries: tuple[str, ...] | None) -> None:
        if entries is not None:
            self.head.subset = tuple(plain_host(entry) for entry in entries)

    def _end_if_all_is_said(self, side: RequestSide) -> None:
        """The response is over: end after the last event that the announced modes bring, not before.

        With response body mode NONE the end is not known, and the gateway ends the stream.
        """
        if side.ended and self.response_mode is not BodyMode.NONE:
            self.ended = True

    def _request_headers(self, side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        message = request.request_headers
        if not self.head.headers:
            headers = self.head.headers = Headers(message.headers)
            headers.drop(self._kit.untrusted)
            if self._kit.rules.conformance_hooks and STEERING_HEADER in headers:
                self._limit_to(tuple(entry.strip() for entry in headers.get(STEERING_HEADER).split(",")))
        return side.headers(end=message.end_of_stream)

    def _request_body(self, side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        message = request.request_body
        return side.body(message.body, end=message.end_of_stream)

    def _request_trailers(self, side: RequestSide, _request: ProcessingRequest) -> list[bytes]:
        return side.trailers()

    def _response_headers(self, side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        message = request.response_headers
        if not self.response.begun:
            if not self._picked:
                side.abandon()
            names = self._kit.rules.names
            served = listed(request, names.served_namespace, names.served)
            self.response.headers(Headers(message.headers), served=served[-1] if served else "")
        self.response.ended = self.response.ended or message.end_of_stream
        if self._kit.rules.conformance_hooks:
            return [served_echo(self.response.served)]
        if self.explanation:
            return [explained(self.explanation)]
        return [wire.OK[Place.RESPONSE_HEADERS]]

    def _response_body(self, _side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        message = request.response_body
        body, end = message.body, message.end_of_stream
        duplex = self.response_mode in _DUPLEX
        if self.response.ended:
            return [] if duplex else [wire.OK[Place.RESPONSE_BODY]]
        self.response.body(body)
        self.response.ended = end
        return wire.streamed(Place.RESPONSE_BODY, body, end=end) if duplex else [wire.OK[Place.RESPONSE_BODY]]

    def _response_trailers(self, _side: RequestSide, _request: ProcessingRequest) -> list[bytes]:
        self.response.ended = True
        return [wire.OK[Place.RESPONSE_TRAILERS]]


_HANDLERS: dict[str, Callable[[Exchange, RequestSide, ProcessingRequest], list[bytes]]] = {
    "request_headers": Exchange._request_headers,
    "request_body": Exchange._request_body,
    "request_trailers": Exchange._request_trailers,
    "response_headers": Exchange._response_headers,
    "response_body": Exchange._response_body,
    "response_trailers": Exchange._response_trailers,
}
