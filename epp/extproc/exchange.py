"""One ext_proc stream as a state machine: serialised messages in, serialised answers out.

It does no I/O, knows no clock and never waits; `docs/protocol.md` draws its states. The servicer feeds `receive`,
picks an endpoint once `wants_pick` is true, gives it to `answer`, and ends the RPC once `ended` is true.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from epp._pb.base_pb2 import HeaderMap, Metadata
from epp._pb.external_processor_pb2 import ProcessingRequest
from epp.extproc import wire
from epp.extproc.body import Budget, HeldBody
from epp.extproc.hygiene import LB_NAMESPACE, SERVED_KEY, SUBSET_KEY, SUBSET_NAMESPACE
from epp.extproc.pick_answer import PickAnswers
from epp.extproc.refusal import Refusal, immediate_response
from epp.extproc.request_side import Duplex, RequestSide, Turnwise
from epp.extproc.response import ResponseWatch
from epp.extproc.wire import Place
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


class ProtocolError(Exception):
    """The peer sent bytes that are no ext_proc message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRules:
    """What the settings say about every exchange; the modes hold where the gateway announces none."""

    request_body_mode: BodyMode = BodyMode.AUTO
    response_body_mode: BodyMode = BodyMode.AUTO
    max_body_bytes: int = 32 * 1024 * 1024


@dataclass(slots=True)
class RequestHead:
    """What the gateway says about the request before its body."""

    headers: dict[str, str] = field(default_factory=dict)
    """By name in lower case; of repeated headers the last, which a gateway adds behind the client's."""
    subset: tuple[str, ...] | None = None
    """The only endpoints allowed, as `ip:port` or `ip`; None: all."""

    def get(self, name: str) -> str:
        """The header's value, empty when absent."""
        return self.headers.get(name, "")


class Exchange:
    """One HTTP request and its response, as the gateway shows them."""

    def __init__(self, rules: ExchangeRules, budget: Budget, answers: PickAnswers) -> None:
        self.head = RequestHead()
        self.held = HeldBody(budget, rules.max_body_bytes)
        self.response = ResponseWatch()
        self.ended = False
        """Nothing more is to be said: the RPC must end now."""
        self._rules = rules
        self._answers = answers
        self._request: RequestSide | None = None
        self._response_mode = rules.response_body_mode
        self._silent = False
        self._picked = False

    @property
    def wants_pick(self) -> bool:
        """The request is as complete as it will get: time to call `answer` or `refuse`."""
        return self._request is not None and self._request.wants_pick

    def receive(self, message: bytes) -> list[bytes]:
        """Take the gateway's next message and return the answers to send at once, in order.

        Raises ProtocolError when the bytes are no ProcessingRequest.
        """
        try:
            request = ProcessingRequest.FromString(message)
        except DecodeError:
            raise ProtocolError("not an ext_proc ProcessingRequest") from None
        side = self._request or self._begin(request)
        kind = request.WhichOneof("request")
        if kind is None or self._silent:
            return []
        answers = _HANDLERS[kind](self, side, request)
        self._end_if_all_is_said(side)
        return answers

    def answer(self, decision: Decision) -> list[bytes]:
        """The answers that carry the pick, and all that were held for it."""
        assert self._request is not None
        self._picked = True
        answers = self._request.answer(decision)
        self._end_if_all_is_said(self._request)
        return answers

    def refuse(self, refusal: Refusal) -> list[bytes]:
        """The error in place of a worker, which ends the exchange; nothing once a response has begun."""
        self.close()
        if self.response.begun or self._silent:
            return []
        return [immediate_response(refusal, request_id=self.head.get("x-request-id"))]

    def half_close(self) -> None:
        """The gateway will send no more: all that it asked is answered, or will never be complete."""
        self.close()

    def close(self) -> None:
        """The stream is over, for whatever reason; lets go of what it held."""
        self.ended = True
        self.held.forget()

    def _begin(self, request: ProcessingRequest) -> RequestSide:
        """Learn from the first message how this gateway wants its answers."""
        mode = self._rules.request_body_mode
        if request.HasField("protocol_config"):
            mode = _ANNOUNCED.get(request.protocol_config.request_body_mode, BodyMode.AUTO)
            self._response_mode = _ANNOUNCED.get(request.protocol_config.response_body_mode, BodyMode.AUTO)
        self._silent = request.observability_mode
        self.head.subset = _subset(request.metadata_context)
        if mode in _DUPLEX:
            self._request = Duplex(self.held, self._answers)
        else:
            self._request = Turnwise(
                self.held,
                self._answers,
                buffered=mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL),
                bodyless=mode is BodyMode.NONE,
            )
        return self._request

    def _end_if_all_is_said(self, side: RequestSide) -> None:
        """End after the last event that the announced modes bring: earlier loses answers, never leaks memory.

        With response body mode NONE the end is not known, and the gateway ends the stream.
        """
        if self.response.ended and side.ended and self._response_mode is not BodyMode.NONE:
            self.ended = True

    def _request_headers(self, side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        if not self.head.headers:
            self.head.headers = _headers(request.request_headers.headers)
        return side.headers(end=request.request_headers.end_of_stream)

    def _request_body(self, side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        return side.body(request.request_body.body, end=request.request_body.end_of_stream)

    def _request_trailers(self, side: RequestSide, _request: ProcessingRequest) -> list[bytes]:
        return side.trailers()

    def _response_headers(self, side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        if not self.response.begun:
            if not self._picked:
                side.abandon()
            served = _text(request.metadata_context, LB_NAMESPACE, SERVED_KEY)
            self.response.headers(_headers(request.response_headers.headers), served=served)
        self.response.ended = self.response.ended or request.response_headers.end_of_stream
        return [wire.OK[Place.RESPONSE_HEADERS]]

    def _response_body(self, _side: RequestSide, request: ProcessingRequest) -> list[bytes]:
        body, end = request.response_body.body, request.response_body.end_of_stream
        duplex = self._response_mode in _DUPLEX
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


def _headers(headers: HeaderMap) -> dict[str, str]:
    """Names in lower case; `raw_value`, else `value`; bytes that are not UTF-8 become replacement characters."""
    return {
        header.key.lower(): header.raw_value.decode("utf-8", "replace") if header.raw_value else header.value
        for header in headers.headers
    }


def _subset(metadata: Metadata) -> tuple[str, ...] | None:
    """The subset hint: a list, or one comma-separated string (rule P3 names the list; both occur)."""
    if SUBSET_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET_KEY not in fields:
        return None
    value = fields[SUBSET_KEY]
    entries = [item.string_value for item in value.list_value.values] or value.string_value.split(",")
    return tuple(entry.strip() for entry in entries if entry.strip())


def _text(metadata: Metadata, namespace: str, key: str) -> str:
    if namespace not in metadata.filter_metadata:
        return ""
    fields = metadata.filter_metadata[namespace].fields
    return fields[key].string_value if key in fields else ""
