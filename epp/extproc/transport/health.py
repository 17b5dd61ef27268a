"""gRPC health on its own port, in plain text: kubelet probes speak no TLS."""

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from epp.extproc.transport.grpcio import SERVICE

LIVENESS = "liveness"
READY_NAMES = ("", "readiness", SERVICE, "inference-extension")
"""Names that say whether requests may be sent: the protocol's (P14), and those that probes in the field use."""


class HealthServer:
    """Answers Check and Watch; alive from the start, ready when told so."""

    def __init__(self, *, host: str, port: int) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._servicer = health_aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen, not yet ready; returns the port. Raises RuntimeError when the port cannot be bound."""
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        port = self._server.add_insecure_port(self._address)
        await self._server.start()
        return port

    async def set_ready(self, ready: bool) -> None:
        """Whether the gateway should send requests here."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in READY_NAMES:
            await self._servicer.set(name, status)

    async def stop(self) -> None:
        """Stop answering."""
        if self._server is not None:
            await self._server.stop(0)
