"""gRPC health beside ext_proc, by the servicer that the health port uses."""

from collections.abc import Awaitable, Callable
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from epp.extproc.transport.health import Health
from epp.extproc.transport.http2.status import GrpcError, Status
from epp.extproc.transport.stream import Serve, Stream

_SERVICE = "/grpc.health.v1.Health/"


def health_methods(health: Health) -> dict[str, Serve]:
    """The methods of the health service, by path."""
    servicer = health.servicer
    return {
        _SERVICE + "Check": _method(servicer.Check, health_pb2.HealthCheckRequest),
        _SERVICE + "List": _method(servicer.List, health_pb2.HealthListRequest),
        _SERVICE + "Watch": _method(servicer.Watch, health_pb2.HealthCheckRequest),
    }


class _Context:
    """What of gRPC's context the servicer uses."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def write(self, response: Message) -> None:
        await self._stream.write(response.SerializeToString())

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        number: int = code.value[0]
        raise GrpcError(Status(number), details)


def _method(answer: Callable[[Message, _Context], Awaitable[Message | None]], request: type[Message]) -> Serve:
    async def serve(stream: Stream) -> None:
        message = await stream.read()
        if message is None:
            raise GrpcError(Status.INVALID_ARGUMENT, "no request")
        try:
            parsed = request.FromString(message)
        except DecodeError:
            raise GrpcError(Status.INVALID_ARGUMENT, "not a health request") from None
        response = await answer(parsed, _Context(stream))
        if response is not None:
            await stream.write(response.SerializeToString())

    return serve
