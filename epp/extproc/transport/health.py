"""gRPC health: on its own port in plain text, since kubelet probes speak no TLS, and on the ext_proc port."""

import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

LIVENESS = "liveness"
READY_NAMES = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension")
"""Names that say whether requests may be sent: the protocol's (rule P14), and those that probes in the field use."""

_Status = health_pb2.HealthCheckResponse


class _Servicer(health_aio.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Check and Watch from grpc_health, with the List that it lacks."""

    async def List(self, _request: object, _context: object) -> Message:  # noqa: N802 - the method's name on the wire
        """The status of every name."""
        statuses = {name: _Status(status=status) for name, status in self._server_status.items()}
        response: Message = health_pb2.HealthListResponse(statuses=statuses)
        return response


class Health:
    """What health checks are told: alive from the start, ready when told so."""

    def __init__(self) -> None:
        self.servicer = _Servicer()
        self.servicer._server_status.update(
            {LIVENESS: _Status.SERVING, **dict.fromkeys(READY_NAMES, _Status.NOT_SERVING)}
        )

    async def set_ready(self, ready: bool) -> None:
        """Whether gateways should send requests here."""
        for name in READY_NAMES:
            await self.servicer.set(name, _Status.SERVING if ready else _Status.NOT_SERVING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer Check, Watch and List on `server` too."""
        health_pb2_grpc.add_HealthServicer_to_server(self.servicer, server)


class HealthServer:
    """The health port."""

    def __init__(self, health: Health, *, host: str, port: int) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._health = health
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises RuntimeError when the port cannot be bound."""
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self._health.add_to(self._server)
        port = self._server.add_insecure_port(self._address)
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Stop answering."""
        if self._server is not None:
            await self._server.stop(0)
