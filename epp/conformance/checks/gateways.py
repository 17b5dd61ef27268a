"""Whole exchanges, played as each family of gateways plays them."""

import asyncio

from epp.conformance import picked
from epp.conformance.check import Level, check
from epp.conformance.exchange import Half
from epp.conformance.lab import Lab
from epp.conformance.messages import BUFFERED, HttpRequest, HttpResponse, Modes, Shape
from epp.conformance.sources import EXT_PROC, OBSERVED
from epp.conformance.verdict import FailedError

_ANSWER = HttpResponse(
    headers=(("content-type", b"text/event-stream"), ("transfer-encoding", b"chunked")),
    chunks=(b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n', b"data: [DONE]\n\n", b""),
)
_BREACH = "requests fail, hang or are changed behind this gateway, whatever the other checks say"


async def _whole(lab: Lab, request: HttpRequest, *, shape: Shape, served: bool) -> None:
    async with lab.exchange(shape=shape) as exchange:
        asked = await exchange.request(request)
        pick = picked.routed(asked)
        _same(asked, "request_body", request.body)
        answer = HttpResponse(headers=_ANSWER.headers, chunks=_ANSWER.chunks, served=pick if served else "")
        answered = await exchange.respond(answer, in_turn=True)
    picked.completed(answered)
    _same(answered, "response_body", answer.body)


def _same(half: Half, name: str, body: bytes) -> None:
    if half.sent_on(name) != body:
        raise FailedError(f"{half}; {len(half.sent_on(name))} of {len(body)} bytes came back, or others")


@check(
    "gateway.envoy",
    rule="As Envoy in Istio and kgateway: the body in one message and an empty last one, the answer chunk by chunk",
    source=OBSERVED + "Envoy 1.40",
    breach=_BREACH,
)
async def envoy(lab: Lab) -> None:
    await _whole(lab, lab.chat(300_000, empty_end=True), shape=Shape.ENVOY, served=True)


@check(
    "gateway.agentgateway",
    rule="As agentgateway: pseudo-headers last and in value, 300 KB in 13 messages, then an end",
    source=OBSERVED + "agentgateway 1.4",
    breach=_BREACH,
)
async def agentgateway(lab: Lab) -> None:
    await _whole(lab, lab.chat(300_000, messages=13, empty_end=True), shape=Shape.AGENTGATEWAY, served=True)


@check(
    "gateway.nginx",
    rule="As NGINX Gateway Fabric: no pseudo-headers, nothing announced, one body message, half-close, no response",
    source=OBSERVED + "NGINX Gateway Fabric 2.6",
    breach=_BREACH,
)
async def nginx(lab: Lab) -> None:
    request = lab.chat(100_000)
    async with lab.exchange(shape=Shape.NGINX, modes=Modes(announced=False)) as exchange:
        half = await exchange.request_and_half_close(request)
        picked.routed(half)
        await exchange.stream.drain()
        if not exchange.stream.ended_well:
            raise FailedError(f"{half}; then the RPC {exchange.stream.end or 'stayed open'}")


@check(
    "gateway.ai-gateway-buffered",
    level=Level.SHOULD,
    rule="As Envoy AI Gateway with its buffered annotation: bodies whole, both ways",
    source=OBSERVED + "Envoy AI Gateway 1.1, annotation processing-body-mode: buffered",
    breach=_BREACH,
)
async def ai_gateway_buffered(lab: Lab) -> None:
    async with lab.exchange(modes=Modes(request_body=BUFFERED, response_body=BUFFERED)) as exchange:
        picked.routed(await exchange.request(lab.chat(100_000)))
        answered = await exchange.respond(_ANSWER)
    picked.completed(answered)


@check(
    "gateway.retries",
    rule="A gateway that retries asks again, with the same request id, while the first stream may still be open",
    source=OBSERVED + "agentgateway calls the picker once per attempt; " + EXT_PROC,
    breach="retries fail, so that one lost worker costs requests that another could have served",
)
async def retries(lab: Lab) -> None:
    chat = lab.chat(2000)
    request = HttpRequest(headers=(*chat.headers, ("x-request-id", b"conformance-retry")), chunks=chat.chunks)
    async with lab.exchange() as first:
        picked.routed(await first.request(request))
        for half in await asyncio.gather(lab.ask(request), lab.ask(request)):
            picked.routed(half)


CHECKS = (envoy, agentgateway, nginx, ai_gateway_buffered, retries)
