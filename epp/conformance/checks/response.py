"""The response half: what the worker says has to reach the client as it is, at once."""

from epp.conformance import picked
from epp.conformance.check import Level, check
from epp.conformance.checks.request_body import MAX_PIECE, difference
from epp.conformance.exchange import Ending, Half
from epp.conformance.lab import Lab, get
from epp.conformance.messages import HttpResponse
from epp.conformance.sources import EXT_PROC, OBSERVED, PROTOCOL
from epp.conformance.verdict import FailedError

_SSE = (("content-type", b"text/event-stream"),)
_EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"Hel',
    b'lo"}}]}\n\ndata: {"choices":[{"delta":{"content":"\xc3',
    b'\xa9"}}]}\r\n\r\n: a comment\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\ndata: [DO',
    b"NE]\n\n",
)
_HOP_BY_HOP = (
    "transfer-encoding",
    "content-length",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
)
_ORDER = ("response_headers", "response_body", "response_trailers")


async def _answered(lab: Lab, response: HttpResponse, *, in_turn: bool = False) -> Half:
    """The response half of an exchange whose request was routed."""
    async with lab.exchange() as exchange:
        picked.completed(await exchange.request(lab.chat(2000, empty_end=True)))
        half = await exchange.respond(response, in_turn=in_turn)
    return picked.completed(half)


def _same(response: HttpResponse, half: Half) -> None:
    back = half.sent_on("response_body")
    if back != response.body:
        raise FailedError(f"{half}; {difference(response.body, back)}")


@check(
    "response.streams",
    rule="P2: pass a streamed answer on token by token: each chunk comes back before the next is there",
    source=PROTOCOL,
    breach="users see nothing until the whole answer is done",
)
async def streams(lab: Lab) -> None:
    await _answered(lab, HttpResponse(headers=_SSE, chunks=_EVENTS), in_turn=True)


@check(
    "response.same-bytes",
    rule="P2: the answer comes back byte for byte, however it was cut",
    source=PROTOCOL,
    breach="users get changed or cut answers with status 200",
)
async def same_bytes(lab: Lab) -> None:
    whole = b"".join(_EVENTS)
    responses = (
        HttpResponse(headers=_SSE, chunks=_EVENTS),
        HttpResponse(headers=_SSE, chunks=tuple(whole[at : at + 7] for at in range(0, len(whole), 7))),
        HttpResponse(chunks=(b'{"choices":[{"text":"' + b"x" * 300_000 + b'"}]}', b"")),
        HttpResponse(headers=(("content-type", b"application/octet-stream"),), chunks=(bytes(range(256)) * 40,)),
    )
    for response in responses:
        _same(response, await _answered(lab, response))


@check(
    "response.plain-error",
    rule="An answer that is no JSON, as the gateway's own errors, passes untouched",
    source="GIE #1436: a text answer of Envoy went into the JSON parser",
    breach="the message that says what is wrong is replaced by a parse error",
)
async def plain_error(lab: Lab) -> None:
    responses = (
        HttpResponse(status=503, headers=(("content-type", b"text/plain"),), chunks=(b"no healthy upstream",)),
        HttpResponse(status=500, chunks=(b'{"error": "cut', b"")),
        HttpResponse(status=200, headers=_SSE, chunks=(b"data: {not json}\n\n\xff\xfe", b"")),
    )
    for response in responses:
        _same(response, await _answered(lab, response))


@check(
    "response.streamed-response",
    rule="Wire rule 2: every answer to a body message is a streamed_response",
    source=EXT_PROC + "; GIE #3035",
    breach="500 behind Envoy, an empty answer with status 200 behind agentgateway",
)
async def streamed_response(lab: Lab) -> None:
    async with lab.exchange() as exchange:
        picked.completed(await exchange.request(get()))
        half = await exchange.respond(HttpResponse(headers=_SSE, chunks=_EVENTS))
    for body in half.bodies("response_body"):
        if body.response.body_mutation.WhichOneof("mutation") != "streamed_response":
            raise FailedError(f"{half}; a body answer is no streamed_response")
    picked.completed(half)


@check(
    "response.order",
    rule="Wire rule 3: answers come in the order headers, body, trailers, each of headers and trailers once",
    source=EXT_PROC,
    breach="the answer fails or hangs after it has begun",
)
async def order(lab: Lab) -> None:
    for trailers in (False, True):
        half = await _answered(lab, HttpResponse(headers=_SSE, chunks=_EVENTS, trailers=trailers))
        if any(kind not in _ORDER for kind in half.kinds):
            raise FailedError(f"{half}; not all of them answer the response")
        ordered = half.kinds == sorted(half.kinds, key=_ORDER.index)
        if not ordered or half.kinds.count("response_headers") != 1:
            raise FailedError(f"{half}, in that order")


@check(
    "response.one-end",
    rule="Exactly one piece has end_of_stream, and it is the last; none when trailers follow",
    source=EXT_PROC,
    breach="without an end the answer hangs; an early one cuts it",
)
async def one_end(lab: Lab) -> None:
    for trailers in (False, True):
        half = await _answered(lab, HttpResponse(headers=_SSE, chunks=_EVENTS, trailers=trailers))
        ends = [piece.end_of_stream for piece in half.pieces("response_body")]
        right = not any(ends) if trailers else ends.count(True) == 1 and ends[-1]
        if not right:
            follow = ", and trailers follow" if trailers else ""
            raise FailedError(f"{half}; end_of_stream in {ends.count(True)} of {len(ends)} pieces{follow}")


@check(
    "response.piece-size",
    rule=f"Wire rule 4: no piece is over {MAX_PIECE} bytes",
    source=OBSERVED + "GKE's gateway refuses larger ones, GIE #854",
    breach="long answers, as of embeddings, fail behind such gateways",
)
async def piece_size(lab: Lab) -> None:
    half = await _answered(lab, HttpResponse(chunks=(b"[" + b"0," * 150_000 + b"0]", b"")))
    sizes = [len(piece.body) for piece in half.pieces("response_body")]
    if max(sizes, default=0) > MAX_PIECE:
        raise FailedError(f"{half}; a piece of {max(sizes)} bytes")


@check(
    "response.ends-by-trailers",
    rule="Wire rule 5: trailers are answered, and end a response too",
    source=EXT_PROC,
    breach="answers with trailers, as all of gRPC, hang at their end",
)
async def ends_by_trailers(lab: Lab) -> None:
    for chunks in (_EVENTS, ()):
        response = HttpResponse(headers=_SSE, chunks=chunks, trailers=True)
        _same(response, await _answered(lab, response))


@check(
    "response.header-only",
    rule="An answer without a body is done with the answer to its headers",
    source=EXT_PROC,
    breach="204, 304 and answers to HEAD hang",
)
async def header_only(lab: Lab) -> None:
    half = await _answered(lab, HttpResponse(status=204))
    if half.kinds != ["response_headers"]:
        raise FailedError(str(half))


@check(
    "response.stays-open",
    rule="Do not end the RPC before the last event that the announced modes bring",
    source=OBSERVED + "agentgateway answers 500 to every request, Envoy 200 with an empty body",
    breach="answers are lost, with status 200 and no error counter anywhere",
)
async def stays_open(lab: Lab) -> None:
    async with lab.exchange() as exchange:
        asked = await exchange.request(lab.chat(2000, empty_end=True))
        picked.completed(asked)
        half = await exchange.respond(HttpResponse(headers=_SSE, chunks=_EVENTS), in_turn=True)
    if half.ending is Ending.BROKEN:
        raise FailedError(str(half))


@check(
    "response.half-close-ends",
    rule="A gateway that half-closes after a complete request gets its answer, and then the end of the RPC",
    source=OBSERVED + "NGINX Gateway Fabric half-closes and waits for the picker to end the RPC",
    breach="every request hangs behind NGINX Gateway Fabric",
)
async def half_close_ends(lab: Lab) -> None:
    async with lab.exchange() as exchange:
        half = await exchange.request_and_half_close(lab.chat(2000))
        picked.completed(half)
        await exchange.stream.drain()
        if not exchange.stream.ended_well:
            raise FailedError(f"{half}; then the RPC {exchange.stream.end or 'stayed open'}")


@check(
    "response.own-headers-only",
    rule="Set no hop-by-hop header and no content-length on the response",
    source="GIE #2993; sglang PR #27523",
    breach="behind HTTP/2 gateways streamed answers are cut after the first events",
)
async def own_headers_only(lab: Lab) -> None:
    hop = (("transfer-encoding", b"chunked"), ("connection", b"keep-alive"), ("content-length", b"12"))
    half = await _answered(lab, HttpResponse(headers=(*_SSE, *hop), chunks=_EVENTS))
    for answer in half.answers:
        for option in answer.response_headers.response.header_mutation.set_headers:
            if option.header.key.lower() in _HOP_BY_HOP:
                raise FailedError(f"{half.what}: the answer sets {option.header.key}")


@check(
    "response.served-endpoint",
    rule="P13: take the endpoint that served, as the gateway reports it in the response's metadata",
    source=PROTOCOL,
    breach="every answer fails behind gateways that report it, as Istio and agentgateway do",
)
async def served_endpoint(lab: Lab) -> None:
    for served in (lab.endpoints()[0], "192.0.2.1:9", "nonsense"):
        response = HttpResponse(headers=_SSE, chunks=_EVENTS, served=served)
        _same(response, await _answered(lab, response))


@check(
    "response.before-request-end",
    level=Level.SHOULD,
    rule="A response that begins before the request has ended, as the gateway's own errors do, is passed on",
    source=EXT_PROC + ": local replies go through the response half",
    breach="the gateway's error for a slow or cut upload is lost, and the client hangs",
)
async def before_request_end(lab: Lab) -> None:
    request = lab.chat(20_000, messages=2)
    response = HttpResponse(status=408, headers=(("content-type", b"text/plain"),), chunks=(b"request timeout", b""))
    async with lab.exchange() as exchange:
        await exchange.begin(request, pieces=1)
        half = await exchange.respond(response)
    half.what += " in the middle of a request"
    _same(response, picked.completed(half))


@check(
    "response.no-late-refusal",
    rule="Wire rule 10: no ImmediateResponse once the response has begun",
    source=EXT_PROC + "; " + OBSERVED + "agentgateway closes the client's connection, Envoy answers 503",
    breach="an answer that the worker has already computed is thrown away",
)
async def no_late_refusal(lab: Lab) -> None:
    for status in (400, 429, 500, 503):
        async with lab.exchange() as exchange:
            picked.completed(await exchange.request(lab.chat(500)))
            half = await exchange.respond(HttpResponse(status=status, chunks=(b'{"error":{"message":"busy"}}', b"")))
        if half.immediate is not None:
            raise FailedError(str(half))


@check(
    "response.ends-itself",
    level=Level.SHOULD,
    rule="End the RPC, or take the gateway's half-close, once the response is over",
    source=EXT_PROC + "; " + OBSERVED + "Envoy resets streams that are still open; grpc #43360 leaks each in Python",
    breach="streams pile up in the picker, or each request leaks a little memory",
)
async def ends_itself(lab: Lab) -> None:
    async with lab.exchange() as exchange:
        picked.completed(await exchange.request(lab.chat(500)))
        half = await exchange.respond(HttpResponse(chunks=(b"{}", b"")))
        await exchange.stream.half_close()
        await exchange.stream.drain()
        if not exchange.stream.ended_well:
            raise FailedError(f"{half}; then the RPC {exchange.stream.end or 'stayed open'}")


CHECKS = (
    streams,
    same_bytes,
    plain_error,
    streamed_response,
    order,
    one_end,
    piece_size,
    ends_by_trailers,
    header_only,
    stays_open,
    half_close_ends,
    own_headers_only,
    served_endpoint,
    before_request_end,
    no_late_refusal,
    ends_itself,
)
