"""Every request body mode with every response body mode, for every kind of request: bytes are exact both ways."""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import pytest
from aiohttp import ClientSession, ClientTimeout, web

from epp.endpoints.endpoint import Endpoint
from epp.extproc.transport.choice import transport_for
from epp.settings import BodyMode, Settings, TransportName
from epp.simulate.envoy import RUN_HEADER, EnvoyConfig, running_envoy
from tests.extproc.world import World

from .http2 import ask, echo_worker

MODES = [mode for mode in BodyMode if mode is not BodyMode.AUTO]
KIB = 1024
SIZES = {
    "1 KB": 1000,
    "64 KB - 1": 64 * KIB - 1,
    "64 KB": 64 * KIB,
    "64 KB + 1": 64 * KIB + 1,
    "1 MB": 1024 * KIB,
    "8 MB": 8 * 1024 * KIB,
}
SPOOFED = {"x-gateway-destination-endpoint": "169.254.169.254:80", "X-Prefiller-Host-Port": "10.9.9.9:22"}


@dataclass(frozen=True)
class Place:
    """One Envoy with its workers behind it."""

    world: World
    port: int
    nonce: str
    session: ClientSession


async def http1(place: Place, body: bytes | None, *, chunked: bool = False) -> str:
    async def pieces() -> AsyncIterator[bytes]:
        assert body is not None
        for at in range(0, len(body), 30_000):
            yield body[at : at + 30_000]

    data = pieces() if chunked else None if body is None else io.BytesIO(body)
    method = "GET" if body is None else "POST"
    url = f"http://127.0.0.1:{place.port}/v1/chat/completions"
    async with place.session.request(method, url, data=data, headers=SPOOFED) as response:
        got = await response.read()
        assert response.headers[RUN_HEADER] == place.nonce, "a foreign listener answered"
        assert response.status == 200, f"{response.status} {got[:80]!r}"
        assert got == (body if body is not None else b"{}"), "changed body"
        assert "x-prefiller-host-port" not in response.headers["x-seen"].split(","), "a routing header got through"
    return "ok"


async def http2(place: Place, body: bytes, *, trailers: bool = False) -> str:
    pieces = [body[at : at + 40_000] for at in range(0, len(body), 40_000)]
    message = await ask(
        place.port,
        "POST",
        "/v1/chat/completions",
        headers=[("content-type", "application/json"), *((name.lower(), value) for name, value in SPOOFED.items())],
        pieces=pieces,
        trailers=[("x-sum", "42")] if trailers else [],
    )
    assert not message.reset, "reset"
    assert message.headers[":status"] == "200", f"{message.headers[':status']} {bytes(message.body[:80])!r}"
    assert message.body == body, "changed body"
    assert message.trailers.get("x-back-x-sum") == ("42" if trailers else None), "lost trailers"
    return "ok"


async def over_grpc(place: Place, body: bytes) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{place.port}") as channel:
        assert await channel.unary_unary("/vllm.Engine/Generate")(body, timeout=20) == body, "changed message"
    return "ok"


def requests() -> dict[str, Callable[[Place], Awaitable[str]]]:
    """Every kind of request, by its name in the table."""
    kinds: dict[str, Callable[[Place], Awaitable[str]]] = {"GET": lambda place: http1(place, None)}
    for name, size in SIZES.items():
        body = os.urandom(size)
        kinds[name] = lambda place, body=body: http1(place, body)
    body = os.urandom(300_000)
    kinds["chunked"] = lambda place: http1(place, body, chunked=True)
    kinds["HTTP/2"] = lambda place: http2(place, body)
    kinds["trailers"] = lambda place: http2(place, body, trailers=True)
    kinds["gRPC"] = lambda place: over_grpc(place, body)
    return kinds


async def echo(request: web.Request) -> web.StreamResponse:
    """An HTTP/1.1 worker; sends the body back in chunks, and the names of the headers that it saw."""
    body = await request.read()
    response = web.StreamResponse(headers={"x-seen": ",".join(name.lower() for name in request.headers)})
    await response.prepare(request)
    for at in range(0, len(body), 50_000):
        await response.write(body[at : at + 50_000])
    if not body:
        await response.write(b"{}")
    await response.write_eof()
    return response


@asynccontextmanager
async def http1_worker() -> AsyncIterator[int]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def placed(
    request_mode: BodyMode, response_mode: BodyMode, carrier: TransportName, *, same_protocol: bool
) -> AsyncIterator[Place]:
    world = World()
    settings = Settings(host="127.0.0.1", grpc_port=0, transport=carrier, secure_serving=False)
    transport = transport_for(settings, world.servicer.serve)
    config = EnvoyConfig(
        picker_port=await transport.start(),
        request_body=request_mode,
        response_body=response_mode,
        message_timeout_seconds=20,
        same_protocol=same_protocol,
        buffer_bytes=32 * 1024 * KIB,
    )
    worker = echo_worker() if same_protocol else http1_worker()
    try:
        async with worker as port, ClientSession(timeout=ClientTimeout(30)) as session:
            world.pool.replace([Endpoint(name="w", address="127.0.0.1", port=port)])
            with running_envoy(config) as envoy:
                yield Place(world, envoy.port, envoy.nonce, session)
                await settled(world)
    finally:
        await transport.stop()


async def settled(world: World) -> None:
    for _ in range(500):
        if not world.servicer.status().open:
            break
        await asyncio.sleep(0.01)
    assert world.servicer.status().open == 0, "a stream stayed open"
    assert world.in_flight == 0, "a reservation stayed"
    assert world.servicer.status().buffered_bytes == 0, "bytes stayed buffered"


PAIRS = [(request, response) for request in MODES for response in MODES]
COMMON = [(mode, mode) for mode in MODES] + [(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE)]
"""Pairs for the carriers other than grpc.aio: whatever carries the messages, they are the same."""


@pytest.mark.parametrize(
    ("request_mode", "response_mode", "carrier"),
    [(*pair, TransportName.GRPCIO) for pair in PAIRS] + [(*pair, TransportName.HTTP2) for pair in COMMON],
)
async def test_matrix(
    request_mode: BodyMode,
    response_mode: BodyMode,
    carrier: TransportName,
    record_property: Callable[[str, object], None],
) -> None:
    results: dict[str, str] = {}
    for same_protocol in (False, True):
        async with placed(request_mode, response_mode, carrier, same_protocol=same_protocol) as place:
            for name, make in requests().items():
                if (name in ("HTTP/2", "trailers", "gRPC")) == same_protocol:
                    try:
                        results[name] = await make(place)
                    except Exception as error:  # noqa: BLE001 - the table shows every cell
                        results[name] = f"{type(error).__name__}: {error}"
    row = {"request": request_mode.value, "response": response_mode.value, "carrier": carrier.value}
    record_property("matrix", {**row, **results})
    assert {name: result for name, result in results.items() if result != "ok"} == {}
