"""A small picker that keeps every rule, written apart from the project's own, with a switch for one fault."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from epp._pb.base_pb2 import HeaderValue, HeaderValueOption
from epp._pb.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from epp._pb.http_status_pb2 import HttpStatus

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.3:8001")
HEALTH_NAMES = ("", "liveness", "readiness", "inference-extension", SERVICE)
REMOVED = (
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-prefiller-host-port",
    "x-prefiller-url",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-dynamo-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-dp-rank",
    "x-dynamo-prefill-dp-rank",
    "x-dynamo-routing-mode",
    "x-worker-instance-id",
    "x-prefill-instance-id",
    "x-data-parallel-rank",
)
STEER = "test-epp-endpoint-selection"
SERVED_ECHO = "x-conformance-test-served-endpoint"
DUPLEX = 4
PIECE = 62_000

Answers = list[ProcessingResponse]


class CloseError(Exception):
    """End the RPC now, with this status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code


def answer(exchange: "Exchange", message: ProcessingRequest, answers: Answers) -> Answers:
    """No fault."""
    return answers


@dataclass(frozen=True)
class Fault:
    """What is wrong with a picker; the default is nothing."""

    answers: Callable[["Exchange", ProcessingRequest, Answers], Answers] = answer
    """Changes what is answered to a message; may raise CloseError."""
    registered: bool = True
    max_message: int = 64 * 1024 * 1024
    dies_of_garbage: bool = False
    dies_of_reset: bool = False
    max_streams: int = 1_000_000
    """Streams served at a time; others wait."""
    lingers: bool = False
    """Stays in the RPC when the gateway half-closes."""
    ends: bool = True
    delay: float = 0.0
    health: dict[str, int] = field(default_factory=dict)
    """Names with another status than SERVING; 0: not known at all."""


class Exchange:
    """One stream: messages in, answers out."""

    def __init__(self, picker: "Picker") -> None:
        self.picker = picker
        self.first = ProcessingRequest()
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.picked = ""
        self.request_over = self.response_over = False

    @property
    def request_mode(self) -> int:
        return self._mode("request_body_mode")

    @property
    def response_mode(self) -> int:
        return self._mode("response_body_mode")

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def handle(self, message: ProcessingRequest) -> Answers:
        if not self.headers:
            self.first = message
        return getattr(self, f"_{message.WhichOneof('request')}")(message)

    def _mode(self, name: str) -> int:
        mode = getattr(self.first.protocol_config, name) if self.first.HasField("protocol_config") else DUPLEX
        return mode if mode in range(4) else DUPLEX

    def _request_headers(self, message: ProcessingRequest) -> Answers:
        for header in message.request_headers.headers.headers:
            self.headers[header.key.lower()] = header.raw_value.decode("utf-8", "replace") or header.value
        if message.request_headers.end_of_stream or self.request_mode in (0, 1):
            self.request_over = message.request_headers.end_of_stream
            return self._pick("request_headers")
        if self.request_mode in (2, 3):
            return [ProcessingResponse(request_headers=HeadersResponse())]
        return []

    def _request_body(self, message: ProcessingRequest) -> Answers:
        if self.request_mode == DUPLEX and self.request_over:
            return []
        self.chunks.append(message.request_body.body)
        self.request_over = message.request_body.end_of_stream
        if self.request_mode in (2, 3):
            return self._pick("request_body")
        if self.request_mode == 1:
            return [ProcessingResponse(request_body=BodyResponse())]
        if not self.request_over:
            return []
        answers = self._pick("request_headers")
        return answers + pieces("request_body", self.body, end=True) if self.picked else answers

    def _request_trailers(self, message: ProcessingRequest) -> Answers:
        self.request_over = True
        answers = self._pick("request_headers")
        if not self.picked:
            return answers
        body = pieces("request_body", self.body, end=False) if self.body else []
        return [*answers, *body, ProcessingResponse(request_trailers=TrailersResponse())]

    def _response_headers(self, message: ProcessingRequest) -> Answers:
        self.response_over = message.response_headers.end_of_stream
        reply = ProcessingResponse(response_headers=HeadersResponse())
        served = message.metadata_context.filter_metadata["envoy.lb"].fields[f"{DESTINATION}-served"].string_value
        if served:
            reply.response_headers.response.header_mutation.set_headers.append(option(SERVED_ECHO, served))
        return [reply]

    def _response_body(self, message: ProcessingRequest) -> Answers:
        self.response_over = message.response_body.end_of_stream
        if self.response_mode != DUPLEX:
            return [ProcessingResponse(response_body=BodyResponse())]
        return pieces("response_body", message.response_body.body, end=self.response_over)

    def _response_trailers(self, message: ProcessingRequest) -> Answers:
        self.response_over = True
        return [ProcessingResponse(response_trailers=TrailersResponse())]

    def _pick(self, place: str) -> Answers:
        candidates = self._candidates()
        if not candidates:
            return [refusal(503)]
        self.picked = candidates[self.picker.turn % len(candidates)]
        self.picker.turn += 1
        headers = [option(DESTINATION, self.picked), option("x-echo-set-header", f"{SERVED_ECHO}:{self.picked}")]
        mutation = HeaderMutation(set_headers=headers, remove_headers=REMOVED)
        common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
        if place == "request_headers":
            reply = ProcessingResponse(request_headers=HeadersResponse(response=common))
        else:
            reply = ProcessingResponse(request_body=BodyResponse(response=common))
        reply.dynamic_metadata.update({"envoy.lb": {DESTINATION: self.picked}})
        return [reply]

    def _candidates(self) -> list[str]:
        candidates = list(self.picker.endpoints)
        if STEER in self.headers:
            named = {entry.strip() for entry in self.headers[STEER].split(",")}
            return [e for e in candidates if e in named or e.rpartition(":")[0].strip("[]") in named]
        hints = self.first.metadata_context.filter_metadata
        if "envoy.lb.subset_hint" in hints:
            subset = {
                value.string_value
                for value in hints["envoy.lb.subset_hint"].fields[f"{DESTINATION}-subset"].list_value.values
            }
            return [endpoint for endpoint in candidates if endpoint in subset]
        return candidates


def option(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode()), append_action=2)


def refusal(status: int) -> ProcessingResponse:
    headers = HeaderMutation(set_headers=[option("content-type", "application/json")])
    body = b'{"error":{"message":"no endpoint","type":"server_error"}}'
    return ProcessingResponse(
        immediate_response=ImmediateResponse(status=HttpStatus(code=status), headers=headers, body=body)
    )


def pieces(place: str, body: bytes, *, end: bool) -> Answers:
    starts = range(0, len(body), PIECE) if body else range(1)
    return [piece(place, body[at : at + PIECE], end=end and at == starts[-1]) for at in starts]


def piece(place: str, body: bytes, *, end: bool) -> ProcessingResponse:
    streamed = StreamedBodyResponse(body=body, end_of_stream=end)
    reply = BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))
    return ProcessingResponse(**{place: reply})


class Picker:
    """Serves streams over gRPC, with health on the same port."""

    def __init__(self, fault: Fault, endpoints: tuple[str, ...] = ENDPOINTS) -> None:
        self.fault = fault
        self.endpoints = endpoints
        self.turn = 0
        self.dead = False
        self.room = asyncio.Semaphore(fault.max_streams)

    async def process(self, _messages: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        exchange = Exchange(self)
        try:
            async with self.room:
                await self._serve(exchange, context)
        except DecodeError:
            self.dead = self.dead or self.fault.dies_of_garbage
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "garbage")
        except CloseError as close:
            if close.code is not grpc.StatusCode.OK:
                await context.abort(close.code, "a fault")
        except asyncio.CancelledError:
            self.dead = self.dead or self.fault.dies_of_reset
            raise

    async def _serve(self, exchange: Exchange, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        while True:
            data = await context.read()
            if self.dead:
                raise CloseError(grpc.StatusCode.UNAVAILABLE)
            if data is grpc.aio.EOF:
                break
            message = ProcessingRequest.FromString(data)
            await asyncio.sleep(self.fault.delay)
            answers = self.fault.answers(exchange, message, exchange.handle(message))
            for reply in [] if exchange.first.observability_mode else answers:
                await context.write(reply.SerializeToString())
            if self.fault.ends and exchange.request_over and exchange.response_over:
                break
        if self.fault.lingers:
            await asyncio.Event().wait()


@asynccontextmanager
async def serving(
    fault: Fault, endpoints: tuple[str, ...] = ENDPOINTS, *, tls: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    """Run a picker with this fault on a free port, which is yielded."""
    picker = Picker(fault, endpoints)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", fault.max_message), ("grpc.so_reuseport", 0)])
    if fault.registered:
        handler = grpc.stream_stream_rpc_method_handler(picker.process)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    health = health_aio.HealthServicer()
    names = dict.fromkeys(HEALTH_NAMES, health_pb2.HealthCheckResponse.SERVING)
    for name, status in {**names, **fault.health}.items():
        if status:
            await health.set(name, status)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_secure_port("127.0.0.1:0", tls) if tls else server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)
