"""The request's body in FULL_DUPLEX_STREAMED, the mode of every gateway."""

import gzip

from epp.conformance import picked
from epp.conformance.check import Level, check
from epp.conformance.exchange import Half
from epp.conformance.lab import Lab, get
from epp.conformance.messages import HttpRequest, HttpResponse
from epp.conformance.sources import EXT_PROC, OBSERVED, PROTOCOL
from epp.conformance.verdict import FailedError

MAX_PIECE = 64 * 1024
_EDGE = 62_000
_JSON = (("content-type", b"application/json"),)
_ORDER = ("request_headers", "request_body", "request_trailers")


async def _bodies(lab: Lab) -> list[tuple[HttpRequest, Half]]:
    """Chat requests of several sizes and cuts, each routed."""
    requests = [
        lab.chat(500),
        lab.chat(500, empty_end=True),
        lab.chat(2000, messages=5),
        *(lab.chat(size, empty_end=True) for size in (_EDGE - 1, _EDGE + 1, MAX_PIECE - 1, MAX_PIECE + 1)),
        lab.chat(300_000, empty_end=True),
        lab.chat(1_000_000, messages=61),
    ]
    return [(request, await lab.passed_on(request)) for request in requests]


def _same(request: HttpRequest, half: Half) -> None:
    back = half.sent_on("request_body")
    if back != request.body:
        raise FailedError(f"{half}; {difference(request.body, back)}")


def difference(sent: bytes, back: bytes) -> str:
    """Where the body that came back differs."""
    if len(sent) != len(back):
        return f"{len(back)} bytes came back for {len(sent)}"
    at = next(at for at in range(len(sent)) if sent[at] != back[at])
    return f"byte {at} of {len(sent)} came back changed"


@check(
    "request.streamed-response",
    rule="Wire rule 2: every answer to a body message is a streamed_response",
    source=EXT_PROC + "; GIE #3035",
    breach="Envoy fails the request with 500; agentgateway sends the worker an empty body and says 200",
)
async def streamed_response(lab: Lab) -> None:
    for request in (lab.chat(500), lab.chat(2000, messages=5, empty_end=True)):
        half = await lab.ask(request)
        for body in half.bodies("request_body"):
            if body.response.body_mutation.WhichOneof("mutation") != "streamed_response":
                raise FailedError(f"{half}; a body answer is no streamed_response")
        picked.completed(half)


@check(
    "request.order",
    rule="Wire rule 3: answers come in the order headers, body, trailers, each of headers and trailers once",
    source=EXT_PROC,
    breach="Envoy fails the request with 500, agentgateway hangs",
)
async def order(lab: Lab) -> None:
    for request in (lab.chat(500, empty_end=True), lab.chat(2000, messages=5), lab.chat(500, trailers=True)):
        half = await lab.ask(request)
        if any(kind not in _ORDER for kind in half.kinds):
            raise FailedError(f"{half}; not all of them answer the request")
        if half.kinds != sorted(half.kinds, key=_ORDER.index) or half.kinds.count("request_headers") != 1:
            raise FailedError(f"{half}, in that order")
        picked.completed(half)


@check(
    "request.same-bytes",
    rule="P2: the body comes back byte for byte, whatever its size and however it was cut",
    source=PROTOCOL,
    breach="the worker gets another prompt than the one that was sent, or half of it, with status 200",
)
async def same_bytes(lab: Lab) -> None:
    for request, half in await _bodies(lab):
        _same(request, half)


@check(
    "request.one-end",
    rule="Exactly one piece has end_of_stream, and it is the last",
    source=EXT_PROC,
    breach="without an end the request hangs; a second end fails it with 500 in Envoy",
)
async def one_end(lab: Lab) -> None:
    for request in (lab.chat(500), lab.chat(2000, messages=5, empty_end=True), lab.chat(200_000)):
        async with lab.exchange() as exchange:
            half = await exchange.request(request)
            ends = [piece.end_of_stream for piece in half.pieces("request_body")]
            later = await exchange.respond(HttpResponse())
        ends += [piece.end_of_stream for piece in later.pieces("request_body")]
        if ends.count(True) != 1 or not ends[-1]:
            raise FailedError(f"{half}; end_of_stream in {ends.count(True)} of {len(ends)} pieces")


@check(
    "request.piece-size",
    rule=f"Wire rule 4: no piece is over {MAX_PIECE} bytes",
    source=OBSERVED + "GKE's gateway refuses larger ones, GIE #854; gRPC's default limit is 4 MiB, ai-gateway #1209",
    breach="long prompts fail with 500 behind such gateways",
)
async def piece_size(lab: Lab) -> None:
    for request in (lab.chat(300_000, empty_end=True), lab.chat(300_000, messages=3)):
        half = await lab.passed_on(request)
        sizes = [len(piece.body) for piece in half.pieces("request_body")]
        if max(sizes, default=0) > MAX_PIECE:
            raise FailedError(f"{half}; a piece of {max(sizes)} bytes")


@check(
    "request.ends-by-trailers",
    rule="Wire rule 5: trailers end a request too: pick, send all of the body on, answer the trailers",
    source=EXT_PROC + "; envoy #27133; " + OBSERVED + "agentgateway sends no end_of_stream before trailers",
    breach="requests with trailers, as gRPC clients and some SDKs send, hang until the route's timeout",
)
async def ends_by_trailers(lab: Lab) -> None:
    request = lab.chat(3000, messages=2, trailers=True)
    _same(request, await lab.passed_on(request))
    bodyless = await lab.ask(HttpRequest(headers=_JSON, trailers=True))
    if bodyless.immediate is None:
        picked.completed(bodyless)


@check(
    "request.repeated-end",
    rule="Wire rule 6: a last chunk that comes twice is one end: one pick, the body once, no error",
    source=OBSERVED + "Envoy 1.35 and later repeat it for bodies over 1 MB, envoy #46237; GIE #2988",
    breach="most requests over 1 MB fail with 400, or reach the worker with rubbish at the end",
)
async def repeated_end(lab: Lab) -> None:
    request = lab.chat(100_000, messages=3)
    async with lab.exchange() as exchange:
        half = await exchange.request(request)
        picked.completed(half)
        again = await exchange.repeat_end(request.chunks[-1])
    bodies = half.sent_on("request_body") + again.sent_on("request_body")
    if not again.complete:
        raise FailedError(f"after the last chunk came again, {again}")
    if bodies != request.body or picked.set_by(again, "x-gateway-destination-endpoint"):
        raise FailedError(
            f"after the last chunk came again, {again}; {len(bodies)} bytes in all for {len(request.body)}"
        )


@check(
    "request.empty-body",
    rule="A body that turns out to be empty is answered: routed and ended, or refused",
    source=EXT_PROC + "; envoy #44201",
    breach="POST without a body, as health probes and some clients send, hangs",
)
async def empty_body(lab: Lab) -> None:
    half = await lab.ask(HttpRequest(path="/v1/x", headers=(), chunks=(b"",)))
    if half.immediate is None:
        picked.completed(half)
    if half.sent_on("request_body"):
        raise FailedError(f"{half}; bytes came back for an empty body")


@check(
    "request.encoded-body",
    level=Level.SHOULD,
    rule="A body that the picker cannot read, as gzip or multipart, is routed and comes back untouched",
    source="llm-d-router #2807",
    breach="compressed requests, audio and images fail although a worker understands them",
)
async def encoded_body(lab: Lab) -> None:
    packed = gzip.compress(lab.chat(5000).body, mtime=0)
    form = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n\x00\xff\xfe\r\n--b--\r\n'
    requests = (
        HttpRequest(headers=(*_JSON, ("content-encoding", b"gzip")), chunks=(packed,)),
        HttpRequest(
            path="/v1/audio/transcriptions",
            headers=(("content-type", b"multipart/form-data; boundary=b"),),
            chunks=(form,),
        ),
    )
    for request in requests:
        _same(request, await lab.passed_on(request))


@check(
    "request.unknown-api",
    level=Level.SHOULD,
    rule="A request of an API that the picker does not know is routed, its body untouched",
    source="llm-d-router #2807; agentgateway #3436",
    breach="new or rare APIs fail with 500 although the workers serve them",
)
async def unknown_api(lab: Lab) -> None:
    requests = (
        HttpRequest(path="/v1/messages/count_tokens", headers=_JSON, chunks=(b'{"model":"m","messages":[]}',)),
        HttpRequest(path="/foo", headers=(("content-type", b"application/octet-stream"),), chunks=(b"\x00\xff\x00",)),
        HttpRequest(method="DELETE", path="/v1/x", headers=()),
        HttpRequest(method="OPTIONS", path="/v1/chat/completions", headers=()),
        get("/health"),
    )
    for request in requests:
        _same(request, await lab.passed_on(request))


CHECKS = (
    streamed_response,
    order,
    same_bytes,
    one_end,
    piece_size,
    ends_by_trailers,
    repeated_end,
    empty_body,
    encoded_body,
    unknown_api,
)
