"""grpc.aio as the carrier of ext_proc streams."""

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio

from epp.extproc.exchange import ProtocolError
from epp.extproc.transport.stream import Stream, StreamGoneError

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_METHOD = "Process"

Serve = Callable[[Stream], Awaitable[None]]
_Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcTransport:
    """A gRPC server whose one method hands each stream to `serve`.

    `port` 0 takes a free one; `start` returns the real one. `drain` stops taking new streams (GOAWAY) and gives the
    running ones up to `timeout` seconds; those that are left then are cancelled, which releases what they hold.
    """

    def __init__(self, serve: Serve, *, host: str, port: int, max_message_bytes: int = 64 * 1024 * 1024) -> None:
        self._serve = serve
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._options = (
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.so_reuseport", 0),
        )
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises RuntimeError when the port cannot be bound."""
        self._server = grpc.aio.server(options=self._options)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._handle)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {_METHOD: handler}),))
        port = self._server.add_insecure_port(self._address)
        await self._server.start()
        return port

    async def drain(self, timeout: float) -> None:
        """Refuse new streams and wait until the running ones are over, at most `timeout` seconds."""
        if self._server is not None:
            await self._server.stop(timeout)

    async def stop(self) -> None:
        """End everything now."""
        await self.drain(0)

    async def _handle(self, _messages: AsyncIterator[bytes], context: _Context) -> None:
        try:
            await self._serve(_GrpcStream(context))
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StreamGoneError:
            pass


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
