"""Which carrier the settings ask for."""

from typing import Protocol

from prometheus_client import CollectorRegistry

from epp.extproc.transport.grpcio import SERVICE, GrpcTransport
from epp.extproc.transport.health import Health
from epp.extproc.transport.http2.health import health_methods
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.metrics import Http2Metrics
from epp.extproc.transport.http2.server import Http2Transport
from epp.extproc.transport.http2.tls import server_context
from epp.extproc.transport.stream import CarrierStatus, Serve
from epp.settings import Settings, TransportName, comma_list


class Transport(Protocol):
    """A server that hands each ext_proc stream to `serve`."""

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError or RuntimeError when it cannot be bound."""

    def status(self) -> CarrierStatus:
        """What it holds now."""

    async def drain(self, timeout: float) -> None:
        """Refuse new streams and wait until the running ones are over, at most `timeout` seconds."""

    async def stop(self) -> None:
        """End everything now."""


def transport_for(
    settings: Settings,
    serve: Serve,
    *,
    health: Health | None = None,
    registry: CollectorRegistry | None = None,
    shared: bool = False,
) -> Transport:
    """The carrier, not yet listening; it answers gRPC health too, where `health` is given.

    `shared`: other processes listen on the same port.

    Raises SettingsError when the certificates are of no use.
    """
    if settings.transport is TransportName.HTTP2:
        return Http2Transport(
            {f"/{SERVICE}/Process": serve} | (health_methods(health) if health else {}),
            host=settings.host,
            port=settings.grpc_port,
            limits=Limits.of(settings),
            tls=server_context(settings),
            client_names=comma_list(settings.tls_client_names),
            metrics=Http2Metrics(registry or CollectorRegistry()),
            shared=shared,
        )
    return GrpcTransport(
        serve,
        host=settings.host,
        port=settings.grpc_port,
        settings=settings,
        max_body_bytes=settings.max_body_bytes,
        health=health,
        shared=shared,
    )
