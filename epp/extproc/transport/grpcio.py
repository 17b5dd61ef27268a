"""grpc.aio as the carrier of ext_proc streams."""

from collections.abc import AsyncIterator

import grpc
import grpc.aio

from epp.extproc.exchange import ProtocolError
from epp.extproc.transport.health import Health
from epp.extproc.transport.stream import CarrierStatus, Serve, StreamGoneError, max_message_bytes
from epp.extproc.transport.tls import server_credentials
from epp.settings import CarrierSettings, comma_list

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_METHOD = "Process"
_Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcTransport:
    """A gRPC server whose one method hands each stream to `serve`; gRPC health is answered beside it.

    `port` 0 takes a free one; `start` returns the real one. `drain` stops taking new streams (GOAWAY) and gives the
    running ones up to `timeout` seconds; those that are left then are cancelled, which releases what they hold.

    Raises SettingsError when the certificates in `settings` are of no use.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        host: str,
        port: int,
        settings: CarrierSettings | None = None,
        max_body_bytes: int = 0,
        health: Health | None = None,
        shared: bool = False,
    ) -> None:
        settings = settings or CarrierSettings(secure_serving=False)
        self._serve = serve
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._credentials = server_credentials(settings)
        self._client_names = frozenset(comma_list(settings.tls_client_names))
        self._options = _options(settings, max_message_bytes(max_body_bytes), shared=shared)
        self._health = health
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises RuntimeError when the port cannot be bound."""
        self._server = grpc.aio.server(options=self._options)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._handle)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {_METHOD: handler}),))
        if self._health is not None:
            self._health.add_to(self._server)
        if self._credentials is None:
            port = self._server.add_insecure_port(self._address)
        else:
            port = self._server.add_secure_port(self._address, self._credentials)
        await self._server.start()
        return port

    def status(self) -> CarrierStatus:
        """gRPC's core does not tell more."""
        return CarrierStatus(name="grpcio")

    async def drain(self, timeout: float) -> None:
        """Refuse new streams and wait until the running ones are over, at most `timeout` seconds."""
        if self._server is not None:
            await self._server.stop(timeout)

    async def stop(self) -> None:
        """End everything now."""
        await self.drain(0)

    async def _handle(self, _messages: AsyncIterator[bytes], context: _Context) -> None:
        if self._client_names and not self._client_names & _names_of_client(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the client certificate has no allowed name")
        try:
            await self._serve(_GrpcStream(context))
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StreamGoneError:
            pass


def _options(settings: CarrierSettings, max_message_bytes: int, *, shared: bool) -> list[tuple[str, int]]:
    options = {
        "grpc.max_receive_message_length": max_message_bytes,
        "grpc.max_send_message_length": max_message_bytes,
        "grpc.max_concurrent_streams": settings.max_connection_streams,
        "grpc.max_allowed_incoming_connections": settings.max_connections,
        "grpc.keepalive_time_ms": round(settings.keepalive_seconds * 1000),
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.keepalive_permit_without_calls": 1,
        # A gateway may ping as often as it likes: refusing pings ends its connection and every request on it.
        "grpc.http2.max_ping_strikes": 0,
        "grpc.so_reuseport": int(shared),
    }
    if settings.max_connection_age_seconds:
        options["grpc.max_connection_age_ms"] = round(settings.max_connection_age_seconds * 1000)
    return list(options.items())


def _names_of_client(context: _Context) -> frozenset[str]:
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return frozenset(name.decode("utf-8", "replace").lower() for name in names)


class _GrpcStream:
    """`Stream` over one RPC."""

    def __init__(self, context: _Context) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        try:
            message: object = await self._context.read()
        except grpc.aio.AioRpcError as error:
            raise StreamGoneError from error
        return message if isinstance(message, bytes) else None

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.AioRpcError as error:
            raise StreamGoneError from error
