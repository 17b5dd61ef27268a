"""A servicer with a real scheduler over made-up endpoints, and the messages that a gateway sends it."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry

from epp._pb.base_pb2 import HeaderMap, HeaderValue, Metadata
from epp._pb.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from epp._pb.processing_mode_pb2 import ProcessingMode
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.extproc.model_list import ModelList
from epp.extproc.rules import ExchangeRules
from epp.extproc.servicer import Servicer
from epp.extproc.transport.stream import StreamGoneError
from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt, Request
from epp.scheduling.explain import Recorded
from epp.scheduling.explain_header import ExplainHeader
from epp.scheduling.outcome import Outcome
from epp.scheduling.policy import Policy
from epp.scheduling.round_robin import RoundRobin
from epp.scheduling.scheduler import Scheduler

NONE = ProcessingMode.NONE
STREAMED = ProcessingMode.STREAMED
BUFFERED = ProcessingMode.BUFFERED
BUFFERED_PARTIAL = ProcessingMode.BUFFERED_PARTIAL
DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED

DESTINATION = "x-gateway-destination-endpoint"


class EmptyIndex:
    """Nobody holds anything."""

    def match(self, prompt: Prompt) -> Match:
        return Match(np.zeros(0, dtype=np.int64))


@dataclass
class PlainReader:
    """Remembers what it was given."""

    seen: list[tuple[str, bytes]] = field(default_factory=list)
    problem: str = ""
    wanted: list[bool] = field(default_factory=list)
    """Whether token ids were asked for, each time."""

    async def read(self, *, path: str, content_type: str, body: bytes, request_id: str, tokens: bool = True) -> Request:
        self.seen.append((path, bytes(body)))
        self.wanted.append(tokens)
        return Request(id=request_id, size=len(body), stream=True, problem=self.problem)


@dataclass
class Outcomes:
    """Remembers how requests ended."""

    told: list[Outcome] = field(default_factory=list)

    def ended(self, outcome: Outcome) -> None:
        self.told.append(outcome)


class World:
    """Some workers, and the servicer that picks among them."""

    def __init__(
        self,
        workers: int = 2,
        rules: ExchangeRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        explain_secret: str = "",
        models: Sequence[str] | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.pool = Pool()
        self.pool.replace(Endpoint(name=f"w{i}", address=f"10.0.0.{i + 1}", port=8000) for i in range(workers))
        self.decisions = Recorded(policy or RoundRobin(), keep=10)
        self.scheduler = Scheduler(pool=self.pool, index=EmptyIndex(), policy=self.decisions)
        self.reader = PlainReader()
        self.registry = CollectorRegistry()
        self.outcomes = Outcomes()
        self.servicer = Servicer(
            reader=self.reader,
            scheduler=self.scheduler,
            observers=[self.outcomes],
            rules=rules or ExchangeRules(),
            registry=self.registry,
            clock=clock,
            explain=ExplainHeader(explain_secret, self.decisions.newest) if explain_secret else None,
            model_list=ModelList(lambda: models) if models is not None else None,
        )

    @property
    def in_flight(self) -> int:
        return int(self.scheduler.load.in_flight.sum())


def config(request_body: int = DUPLEX, response_body: int = DUPLEX) -> ProtocolConfiguration:
    return ProtocolConfiguration(request_body_mode=request_body, response_body_mode=response_body)


def header_map(headers: Iterable[tuple[str, str | bytes]]) -> HeaderMap:
    return HeaderMap(
        headers=[
            HeaderValue(key=name, raw_value=value.encode() if isinstance(value, str) else value)
            for name, value in headers
        ]
    )


def request_headers(
    *more: tuple[str, str | bytes],
    end: bool = False,
    modes: ProtocolConfiguration | None = None,
    path: str = "/v1/chat/completions",
    subset: list[str] | str | None = None,
    observe: bool = False,
) -> bytes:
    message = ProcessingRequest(
        request_headers=HttpHeaders(
            headers=header_map([(":method", "GET" if end else "POST"), (":path", path), *more]), end_of_stream=end
        ),
        protocol_config=modes,
        observability_mode=observe,
    )
    if subset is not None:
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({f"{DESTINATION}-subset": subset})
    return message.SerializeToString()


def request_body(body: bytes, *, end: bool = False) -> bytes:
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end)).SerializeToString()


def request_trailers() -> bytes:
    return ProcessingRequest(request_trailers=HttpTrailers()).SerializeToString()


def response_headers(
    content_type: str = "application/json", status: str = "200", *, end: bool = False, served: str = ""
) -> bytes:
    message = ProcessingRequest(
        response_headers=HttpHeaders(
            headers=header_map([(":status", status), ("content-type", content_type)]), end_of_stream=end
        )
    )
    if served:
        metadata = Metadata()
        metadata.filter_metadata["envoy.lb"].update({f"{DESTINATION}-served": served})
        message.metadata_context.CopyFrom(metadata)
    return message.SerializeToString()


def response_body(body: bytes, *, end: bool = False) -> bytes:
    return ProcessingRequest(response_body=HttpBody(body=body, end_of_stream=end)).SerializeToString()


def response_trailers() -> bytes:
    return ProcessingRequest(response_trailers=HttpTrailers()).SerializeToString()


def parse(answers: Iterable[bytes]) -> list[ProcessingResponse]:
    return [ProcessingResponse.FromString(answer) for answer in answers]


def kinds(answers: Iterable[ProcessingResponse]) -> list[str]:
    return [str(answer.WhichOneof("response")) for answer in answers]


def destination(answer: ProcessingResponse) -> tuple[str, str]:
    """The pick in the header mutation and in the metadata; empty where there is none."""
    half = getattr(answer, str(answer.WhichOneof("response")))
    set_headers = half.response.header_mutation.set_headers if hasattr(half, "response") else []
    named = [option.header.raw_value.decode() for option in set_headers if option.header.key == DESTINATION]
    metadata = answer.dynamic_metadata
    in_metadata = metadata["envoy.lb"][DESTINATION] if "envoy.lb" in metadata else ""
    return (named[0] if named else ""), str(in_metadata)


def streamed(answers: Iterable[ProcessingResponse], kind: str = "request_body") -> tuple[bytes, list[bool]]:
    """The bytes sent back and where each piece says that the stream ends."""
    pieces = [
        getattr(answer, kind).response.body_mutation.streamed_response
        for answer in answers
        if answer.WhichOneof("response") == kind
    ]
    return b"".join(piece.body for piece in pieces), [piece.end_of_stream for piece in pieces]


class Played:
    """A stream in memory: plays its messages, then half-closes, breaks, or stays silent."""

    def __init__(self, messages: Iterable[bytes], *, breaks: bool = False, silent: bool = False) -> None:
        self._messages = list(messages)
        self._breaks = breaks
        self._silent = silent
        self.sent: list[bytes] = []

    @property
    def answers(self) -> list[ProcessingResponse]:
        return parse(self.sent)

    async def read(self) -> bytes | None:
        if self._messages:
            return self._messages.pop(0)
        if self._breaks:
            raise StreamGoneError
        if self._silent:
            await asyncio.Event().wait()
        return None

    async def write(self, message: bytes) -> None:
        self.sent.append(message)
