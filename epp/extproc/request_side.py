"""The request half of an exchange, one class for each way in which gateways want their answers."""

from typing import Protocol

from epp.extproc import wire
from epp.extproc.body import HeldBody
from epp.extproc.pick_answer import PickAnswers
from epp.extproc.wire import Place
from epp.scheduling.scheduler import Decision
from epp.settings import BodyMode


class RequestSide(Protocol):
    """Takes the request's messages and returns the answers to send at once."""

    wants_pick: bool
    """The request is as complete as it will get."""
    ended: bool
    """No more request messages are due."""

    def headers(self, *, end: bool) -> list[bytes]:
        """request_headers came; `end`: the request has no body."""

    def body(self, chunk: bytes, *, end: bool) -> list[bytes]:
        """request_body came."""

    def trailers(self) -> list[bytes]:
        """request_trailers came: they end the request too."""

    def answer(self, decision: Decision) -> list[bytes]:
        """All answers that waited for the pick."""

    def abandon(self) -> None:
        """The response began, or an error was sent, before the pick: the request goes nowhere."""


class Duplex:
    """FULL_DUPLEX_STREAMED, and unknown modes: nothing is answered before the pick, then everything in order.

    The pick waits for the end of the body, or for as much of it as may be held; what follows is sent on as it comes.
    """

    def __init__(self, held: HeldBody, answers: PickAnswers) -> None:
        self.wants_pick = False
        self.ended = False
        self._held = held
        self._answers = answers
        self._headers = False
        self._body = False
        self._trailers = False
        self._picked = False

    def headers(self, *, end: bool) -> list[bytes]:
        if self._picked:
            return [wire.OK[Place.REQUEST_HEADERS]]
        self._headers = True
        self.ended = self.wants_pick = self.ended or end
        return []

    def body(self, chunk: bytes, *, end: bool) -> list[bytes]:
        if self.ended:
            # Envoy may repeat the last chunk (envoy #46237); a second end of stream would fail the request.
            return []
        self.ended = end
        if self._picked:
            self._held.size += len(chunk)
            return wire.streamed(Place.REQUEST_BODY, chunk, end=end)
        self._body = True
        self._held.keep(chunk)
        self.wants_pick = end or self._held.full
        return []

    def trailers(self) -> list[bytes]:
        if self._picked:
            self.ended = True
            return [wire.OK[Place.REQUEST_TRAILERS]]
        if not self.ended:
            self.ended = self.wants_pick = self._trailers = True
        return []

    def answer(self, decision: Decision) -> list[bytes]:
        self._picked = True
        self.wants_pick = False
        answers = [self._answers.at(Place.REQUEST_HEADERS, decision)] if self._headers else []
        answers += self._pieces(end=self.ended and not self._trailers)
        if self._trailers:
            answers.append(wire.OK[Place.REQUEST_TRAILERS])
        if not self._headers:
            answers[0] += self._answers.metadata(decision)
        self._held.forget()
        return answers

    def abandon(self) -> None:
        if not self._picked:
            self.wants_pick = False
            self.ended = True
            self._held.forget()

    def _pieces(self, *, end: bool) -> list[bytes]:
        chunks = self._held.chunks or ([b""] if self._body and end else [])
        return [
            piece
            for at, chunk in enumerate(chunks, start=1)
            for piece in wire.streamed(Place.REQUEST_BODY, chunk, end=end and at == len(chunks))
        ]


class Turnwise:
    """All other modes: every message gets one answer at once, and the pick rides on one of them.

    On that of the headers for NONE and STREAMED, as the gateway sends no body before it. On that of the body when it
    comes buffered: the headers are answered empty, which is when the gateway sends the body.
    """

    def __init__(self, held: HeldBody, answers: PickAnswers, mode: BodyMode) -> None:
        self.wants_pick = False
        self.ended = False
        self._held = held
        self._answers = answers
        self._buffered = mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
        self._partial = mode is BodyMode.BUFFERED_PARTIAL
        self._bodyless = mode is BodyMode.NONE
        self._owed: Place | None = None

    def headers(self, *, end: bool) -> list[bytes]:
        return self._turn(Place.REQUEST_HEADERS, pick=end or not self._buffered, end=end or self._bodyless)

    def body(self, chunk: bytes, *, end: bool) -> list[bytes]:
        if self._owed is None:
            self._held.keep(chunk)
            # The gateway's buffer held no more than this: what it cut off is never shown.
            self._held.full = self._held.full or (self._partial and not end)
        else:
            self._held.size += len(chunk)
        return self._turn(Place.REQUEST_BODY, pick=True, end=end or self._buffered)

    def trailers(self) -> list[bytes]:
        return self._turn(Place.REQUEST_TRAILERS, pick=True, end=True)

    def answer(self, decision: Decision) -> list[bytes]:
        self.wants_pick = False
        assert self._owed is not None
        if self._held.changed and self._owed is Place.REQUEST_BODY:
            answer = self._answers.on_changed_body(decision, self._held.joined())
        else:
            answer = self._answers.at(self._owed, decision)
        self._held.forget()
        return [answer]

    def abandon(self) -> None:
        self.wants_pick = False
        self.ended = True
        self._owed = self._owed or Place.REQUEST_HEADERS
        self._held.forget()

    def _turn(self, place: Place, *, pick: bool, end: bool) -> list[bytes]:
        self.ended = self.ended or end
        if pick and self._owed is None:
            self._owed = place
            self.wants_pick = True
            return []
        return [wire.OK[place]]
