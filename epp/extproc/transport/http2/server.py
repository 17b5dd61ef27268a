"""The HTTP/2 transport: listens, serves the gRPC methods on every connection, drains."""

import asyncio
import ssl
from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry

from epp.extproc.transport.http2.call import Call, RefusedCall
from epp.extproc.transport.http2.connection import Accept, Connection
from epp.extproc.transport.http2.headers import RequestHead
from epp.extproc.transport.http2.limits import Limits
from epp.extproc.transport.http2.link import Link
from epp.extproc.transport.http2.memory import Memory
from epp.extproc.transport.http2.metrics import Http2Metrics
from epp.extproc.transport.http2.request import ONLY_IDENTITY, not_grpc, timeout_seconds
from epp.extproc.transport.http2.status import GrpcError, Status
from epp.extproc.transport.http2.stream import Receiver, Stream
from epp.extproc.transport.stream import CarrierStatus, Serve

_CHECK_SECONDS = 0.5
_BACKLOG = 1024


class Http2Transport:
    """A gRPC server on asyncio whose `methods` (by path) each get the streams that call them.

    `port` 0 takes a free one; `start` returns the real one. `drain` asks every peer to open no more streams (GOAWAY)
    and gives the running ones up to `timeout` seconds; those that are left then are cancelled. With `client_names`
    only clients whose certificate has one of these alternative names are served.
    """

    def __init__(
        self,
        methods: Mapping[str, Serve],
        *,
        host: str,
        port: int,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        client_names: Collection[str] = (),
        metrics: Http2Metrics | None = None,
        shared: bool = False,
    ) -> None:
        """`shared`: other processes listen on the same port."""
        self._methods = {path.encode(): serve for path, serve in methods.items()}
        self._host = host
        self._port = port
        self._shared = shared
        self._limits = limits or Limits()
        self._tls = tls
        self._client_names = frozenset(client_names)
        self.metrics = metrics or Http2Metrics(CollectorRegistry())
        self._memory = Memory(self._limits.buffer_bytes)
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._checks: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError when the port cannot be bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Link(self, self._accept_on, self._limits, self._memory),
            self._host,
            self._port,
            ssl=self._tls,
            ssl_handshake_timeout=self._limits.handshake_seconds if self._tls else None,
            backlog=_BACKLOG,
            reuse_port=self._shared or None,
        )
        self._checks = loop.call_later(_CHECK_SECONDS, self._check)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def status(self) -> CarrierStatus:
        """What it holds now."""
        return CarrierStatus(
            name="http2",
            connections=len(self._links),
            open_streams=sum(len(link.connection.streams) for link in self._links),
            buffered_bytes=self._memory.used,
        )

    async def drain(self, timeout: float) -> None:
        """Refuse new streams and wait until the running ones are over, at most `timeout` seconds."""
        if self._server is None:
            return
        self._server.close()
        for link in self._links:
            link.drain()
        try:
            await asyncio.wait_for(self._gone(), timeout)
        except TimeoutError:
            await self._hang_up()
        if self._checks is not None:
            self._checks.cancel()

    async def stop(self) -> None:
        """End everything now."""
        await self.drain(0)

    # --- Owner, for the links

    def opened(self, link: Link) -> bool:
        """Keep a new link, if there is room for one."""
        self._links.add(link)
        if len(self._links) <= self._limits.connections:
            return True
        self.metrics.refused()
        return False

    def closed(self, link: Link) -> None:
        """Forget a link."""
        if link.connection.fault is not None:
            self.metrics.broken(link.connection.fault.code)
        self._links.discard(link)
        if not self._links:
            self._all_gone.set()

    # --- Within

    async def _gone(self) -> None:
        while self._links:
            self._all_gone.clear()
            await self._all_gone.wait()

    async def _hang_up(self) -> None:
        """Cancel what still runs and wait for it, so that all it holds is released."""
        tasks: list[asyncio.Task[None]] = []
        for link in list(self._links):
            calls = (stream.receiver for stream in link.connection.streams.values())
            tasks += [call.task for call in calls if isinstance(call, Call) and call.task is not None]
            link.connection.abandon()
            link.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._gone()

    def _check(self) -> None:
        for link in list(self._links):
            link.check()
        self._checks = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check)

    def _accept_on(self, link: Link) -> Accept:
        def accept(connection: Connection, stream: Stream, head: RequestHead) -> Receiver:
            return self._accept(link, connection, stream, head)

        return accept

    def _accept(self, link: Link, connection: Connection, stream: Stream, head: RequestHead) -> Receiver:
        other = not_grpc(head)
        if other is not None:
            refused = RefusedCall(connection, stream, link.wake)
            refused.refuse_http(other)
            return refused
        try:
            if self._client_names and not self._client_names & link.names_of_peer():
                raise GrpcError(Status.PERMISSION_DENIED, "the client certificate has no allowed name")
            timeout = timeout_seconds(head, self._methods)
        except GrpcError as error:
            refused = RefusedCall(connection, stream, link.wake)
            refused.refuse(error, ONLY_IDENTITY)
            return refused
        call = Call(
            connection,
            stream,
            max_message_bytes=self._limits.message_bytes,
            max_queued_bytes=self._limits.stream_send_bytes,
            wake=link.wake,
        )
        call.begin(self._methods[head.path], timeout)
        return call
