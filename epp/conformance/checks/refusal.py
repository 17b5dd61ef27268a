"""Requests that get no worker: what the client is told instead."""

import json

from epp.conformance import picked
from epp.conformance.check import Level, Pool, check
from epp.conformance.exchange import Half
from epp.conformance.lab import Lab, get
from epp.conformance.messages import HttpRequest
from epp.conformance.sources import EXT_PROC, OBSERVED, PROTOCOL
from epp.conformance.verdict import FailedError

_JSON = (("content-type", b"application/json"),)
_DEEP = b'{"model":"m","messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}"


def _odd_requests() -> list[HttpRequest]:
    """Requests that some client has sent by mistake or on purpose."""
    return [
        HttpRequest(headers=_JSON, chunks=(body,))
        for body in (
            b"{not json",
            b"\x00\xff\xfe",
            b"",
            b"[]",
            b"null",
            b'{"model":7,"messages":"x"}',
            b'{"messages":[{"role":"user","content":null}]}',
            b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
            b'{"model":"m","messages":[{"role":"user","content":[{"type":"new"}]}],"n":1e999}',
            _DEEP,
        )
    ] + [
        HttpRequest(path="/" + "a" * 8000, headers=(("x-long", b"b" * 8000),), chunks=(b"{}",)),
        HttpRequest(path="", headers=(), chunks=(b"{}",)),
    ]


@check(
    "refusal.empty-pool-503",
    rule="P10: with no ready endpoint, answer with an ImmediateResponse 503",
    source=PROTOCOL,
    breach="while workers restart, clients see 500, which they do not retry, or the gateway sends requests to nobody",
    pool=Pool.EMPTY,
)
async def empty_pool(lab: Lab) -> None:
    for request in (get(), lab.chat(2000, empty_end=True)):
        picked.refused(await lab.ask(request), 503)


@check(
    "refusal.nothing-follows",
    rule="An ImmediateResponse is the last answer, and the RPC then ends well",
    source=EXT_PROC,
    breach="the gateway counts a stream failure, or applies its failure mode in place of the error",
    pool=Pool.ANY,
)
async def nothing_follows(lab: Lab) -> None:
    for request in (get(), lab.chat(2000, empty_end=True)):
        async with lab.exchange() as exchange:
            half = await exchange.request(request, subset=[])
            if half.immediate is None:
                raise FailedError(f"{half}; an ImmediateResponse was due, as the subset hint is empty")
            await exchange.stream.half_close()
            later = await exchange.stream.next()
            if later is not None:
                raise FailedError(f"{half}; then one more answer")
            if exchange.stream.end and not exchange.stream.ended_well:
                raise FailedError(f"{half}; then the RPC ended with {exchange.stream.end}")


@check(
    "refusal.json-body",
    level=Level.SHOULD,
    rule="The body of an error is JSON with an error object, and content-type says so",
    source="OpenAI API reference, errors: what clients' libraries parse",
    breach="clients show an empty or unreadable error",
    pool=Pool.ANY,
)
async def json_body(lab: Lab) -> None:
    half = await lab.ask(lab.chat(500), subset=[])
    if half.immediate is None:
        raise FailedError(f"{half}; an ImmediateResponse was due, as the subset hint is empty")
    headers = {option.header.key.lower(): picked.value(option) for option in half.immediate.headers.set_headers}
    if not headers.get("content-type", "").startswith("application/json"):
        raise FailedError(f"{half}; content-type {headers.get('content-type')!r}")
    if not _has_error(half.immediate.body):
        raise FailedError(f"{half}; body {half.immediate.body[:100]!r}")


def _has_error(body: bytes) -> bool:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "error" in document


@check(
    "refusal.odd-request-answered",
    rule="Whatever a client sends is answered by a pick or by an ImmediateResponse with an error status",
    source=PROTOCOL + ", P10; " + OBSERVED + "Envoy sends an empty body on, status 200, when the RPC ends with OK",
    breach="one malformed request hangs, is sent on empty, or counts as a failure of the picker",
)
async def odd_request_answered(lab: Lab) -> None:
    for request in _odd_requests():
        half = await lab.ask(request)
        if half.immediate is None:
            picked.routed(half)
        elif not 400 <= half.immediate.status.code <= 599:
            raise FailedError(str(half))


@check(
    "refusal.client-mistake-no-5xx",
    level=Level.SHOULD,
    rule="A client's mistake is routed or answered with 4xx, never with 5xx",
    source="GIE and llm-d-router threads on 503 for malformed requests",
    breach="clients and gateways retry what can never work, and alerts ring",
)
async def client_mistake(lab: Lab) -> None:
    for request in _odd_requests():
        half: Half = await lab.ask(request)
        if half.immediate is not None and half.immediate.status.code >= 500:
            raise FailedError(f"{half}; the body began with {request.body[:40]!r}")


CHECKS = (empty_pool, nothing_follows, json_body, odd_request_answered, client_mistake)
