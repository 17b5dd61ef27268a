"""The service itself: that it is there, and that one stream does no harm to another."""

import asyncio
from contextlib import AsyncExitStack

from epp.conformance import messages, picked
from epp.conformance.check import Level, Pool, check
from epp.conformance.lab import Lab, get
from epp.conformance.messages import HttpResponse
from epp.conformance.sources import EXT_PROC, OBSERVED, PROTOCOL
from epp.conformance.verdict import FailedError, SkippedError

_PARALLEL = 32
_LARGE = 5 * 1024 * 1024


@check(
    "connection.service",
    rule="P1: be an Envoy ext_proc v3 gRPC server, one bidirectional stream per HTTP request",
    source=PROTOCOL,
    breach="no gateway can call this picker at all",
)
async def service(lab: Lab) -> None:
    half = await lab.ask(get())
    if not half.answers:
        raise FailedError(str(half))


@check(
    "connection.alpn-h2",
    rule="With TLS, choose h2 by ALPN",
    source="RFC 9113 section 3.2; " + OBSERVED + "NGINX Gateway Fabric's shim insists on it",
    breach="gateways whose gRPC client insists on ALPN, as NGINX Gateway Fabric's, cannot connect",
    pool=Pool.ANY,
)
async def alpn(lab: Lab) -> None:
    if lab.connection.tls is None:
        raise SkippedError("the target speaks plain text")
    if lab.connection.tls.alpn != "h2":
        raise FailedError(f"offered h2, the target chose {lab.connection.tls.alpn or 'nothing'}")


@check(
    "connection.large-message",
    level=Level.SHOULD,
    rule="Take a message of 5 MiB, above gRPC's default limit of 4 MiB",
    source=OBSERVED + "NGINX Gateway Fabric sends a body in one message; GIE #2056",
    breach="a long prompt or an image fails with 500 behind gateways that send the body as one message",
)
async def large_message(lab: Lab) -> None:
    request = lab.chat(_LARGE)
    half = await lab.passed_on(request)
    if half.sent_on("request_body") != request.body:
        raise FailedError(f"{half}; {len(half.sent_on('request_body'))} of {len(request.body)} bytes came back")


@check(
    "connection.parallel-streams",
    rule=f"P1: serve {_PARALLEL} streams on one connection at a time, each with its own body",
    source=PROTOCOL + "; " + OBSERVED + "agentgateway runs 50 parallel streams on one connection",
    breach="under load requests fail or, worse, get parts of another user's prompt",
)
async def parallel_streams(lab: Lab) -> None:
    requests = [lab.chat(1000 + 37 * number, messages=2) for number in range(_PARALLEL)]
    halves = await asyncio.gather(*(lab.ask(request) for request in requests))
    for request, half in zip(requests, halves, strict=True):
        picked.completed(half)
        if half.sent_on("request_body") != request.body:
            raise FailedError(f"{half}; the body that came back is not the one that was sent")


@check(
    "connection.long-answers",
    rule=f"P1: {_PARALLEL} answers that still run do not hold up the next request",
    source=PROTOCOL + "; streams live as long as answers do, which is minutes",
    breach="a few long answers stop all traffic",
)
async def long_answers(lab: Lab) -> None:
    async with AsyncExitStack() as stack:
        exchanges = [await stack.enter_async_context(lab.exchange()) for _ in range(_PARALLEL)]
        for exchange in exchanges:
            picked.completed(await exchange.request(lab.chat(500)))
            await exchange.stream.send(messages.response_headers(HttpResponse(chunks=(b"x",))))
        await lab.passed_on(get())


@check(
    "connection.broken-stream-alone",
    rule="A stream with bytes that are no message ends alone; others on the connection go on",
    source="P1, one stream per HTTP request: " + PROTOCOL,
    breach="one odd stream takes the requests of all other users down",
)
async def broken_stream_alone(lab: Lab) -> None:
    async with lab.exchange() as bystander, lab.stream() as broken:
        await broken.send(b"\xff\xff\xff\xff")
        await broken.next()
        picked.completed(await bystander.request(lab.chat(messages=2)))
    await lab.passed_on(get())


@check(
    "connection.client-left",
    rule="A stream that the gateway resets at any point ends alone, and the next is served",
    source=EXT_PROC + "; " + OBSERVED + "Envoy resets the stream when a client leaves; envoy #47458",
    breach="clients that press stop make the picker fail for everybody",
)
async def client_left(lab: Lab) -> None:
    request = lab.chat(20_000, messages=4)
    for pieces in range(len(request.chunks) + 1):
        async with lab.exchange() as exchange:
            await exchange.begin(request, pieces=pieces)
    for chunk in (b"", b'data: {"choices":[]}\n\n'):
        async with lab.exchange() as exchange:
            picked.completed(await exchange.request(request))
            await exchange.stream.send(messages.response_headers(HttpResponse(chunks=(b"x",))))
            await exchange.stream.send(messages.response_body(chunk, end=False))
    await lab.passed_on(request)


@check(
    "connection.half-close-mid-request",
    level=Level.SHOULD,
    rule="A stream that the gateway half-closes in the middle of a request is ended by the picker",
    source=OBSERVED + "agentgateway half-closes when the client leaves while the picker waits",
    breach="streams of clients that left pile up in the picker and hold its memory and load counts",
)
async def half_close_mid_request(lab: Lab) -> None:
    request = lab.chat(20_000, messages=2)
    async with lab.exchange() as exchange:
        await exchange.begin(request, pieces=1)
        await exchange.stream.half_close()
        await exchange.stream.drain()
        if not exchange.stream.end:
            raise FailedError("half-closed after half of a body: the stream stayed open")


CHECKS = (
    service,
    alpn,
    large_message,
    parallel_streams,
    long_answers,
    broken_stream_alone,
    client_left,
    half_close_mid_request,
)
