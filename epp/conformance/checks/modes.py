"""Body modes other than full duplex, and what a gateway announces or does not."""

from epp.conformance import messages, picked
from epp.conformance.check import Level, check
from epp.conformance.exchange import Half
from epp.conformance.lab import Lab, get
from epp.conformance.messages import BUFFERED, BUFFERED_PARTIAL, DUPLEX, NONE, STREAMED, HttpResponse, Modes
from epp.conformance.sources import EXT_PROC, OBSERVED
from epp.conformance.verdict import FailedError

_JSON_ANSWER = HttpResponse(chunks=(b'{"choices":[]', b',"usage":{"prompt_tokens":7,"completion_tokens":1}}'))


@check(
    "modes.not-announced",
    rule="Never require protocol_config",
    source=OBSERVED + "Envoy before 1.3x, agentgateway before 1.3 and NGINX Gateway Fabric send none",
    breach="the picker fails every request behind older gateways",
)
async def not_announced(lab: Lab) -> None:
    for request in (get(), lab.chat(2000, messages=2, empty_end=True)):
        await lab.routed(request, modes=Modes(announced=False))


@check(
    "modes.waiting-announced",
    rule="Take send_body_without_waiting_for_header_response=false as it comes",
    source="dynamo #13686: agentgateway announces it, and sends the body without waiting",
    breach="the picker fails every request behind agentgateway",
)
async def waiting_announced(lab: Lab) -> None:
    await lab.routed(lab.chat(2000, empty_end=True), modes=Modes(body_without_waiting=False))


@check(
    "modes.unknown-announced",
    level=Level.SHOULD,
    rule="Route requests under an announced body mode that is not known",
    source=EXT_PROC + ": enumerations are open",
    breach="a new version of the gateway fails every request",
)
async def unknown_announced(lab: Lab) -> None:
    await lab.routed(lab.chat(2000, empty_end=True), modes=Modes(announce_request_body=9))


async def _buffered(lab: Lab, mode: int) -> None:
    request = lab.chat(5000)
    half = await lab.routed(request, modes=Modes(request_body=mode, response_body=mode))
    for body in half.bodies("request_body"):
        mutation = body.response.body_mutation
        if mutation.WhichOneof("mutation") not in (None, "body"):
            raise FailedError(f"{half}; the body answer has {mutation.WhichOneof('mutation')}")
        if mutation.body not in (b"", request.body):
            raise FailedError(f"{half}; the body was replaced by other bytes")


@check(
    "modes.request-buffered",
    level=Level.SHOULD,
    rule="BUFFERED: answer the headers at once, and the body by a CommonResponse, with the pick on one of them",
    source=EXT_PROC + "; " + OBSERVED + "Envoy AI Gateway with its annotation, kgateway 2.0",
    breach="the gateway waits for the picker and the picker for the body: 504 after minutes",
)
async def request_buffered(lab: Lab) -> None:
    await _buffered(lab, BUFFERED)


@check(
    "modes.request-buffered-partial",
    level=Level.SHOULD,
    rule="BUFFERED_PARTIAL: the same as BUFFERED",
    source=EXT_PROC,
    breach="the gateway waits for the picker and the picker for the body: 504 after minutes",
)
async def request_buffered_partial(lab: Lab) -> None:
    await _buffered(lab, BUFFERED_PARTIAL)


@check(
    "modes.request-streamed",
    level=Level.SHOULD,
    rule="STREAMED: one answer for each message, as it comes, none with a streamed_response",
    source=EXT_PROC + "; ai-gateway #805",
    breach="a body of more than one message hangs or fails with 500",
)
async def request_streamed(lab: Lab) -> None:
    request = lab.chat(50_000, messages=16)
    half = await lab.routed(request, modes=Modes(request_body=STREAMED, response_body=STREAMED))
    _no_pieces(half, "request_body")


@check(
    "modes.request-none",
    level=Level.SHOULD,
    rule="NONE: pick by the headers alone, since no body will come",
    source=EXT_PROC,
    breach="every request hangs behind a gateway that is set to send no bodies",
)
async def request_none(lab: Lab) -> None:
    await lab.routed(lab.chat(500), modes=Modes(request_body=NONE, response_body=NONE))


@check(
    "modes.response-none",
    level=Level.SHOULD,
    rule="Response body mode NONE: answer the response's headers, wait for no body",
    source=EXT_PROC,
    breach="answers hang behind a gateway that spares the picker the response's body",
)
async def response_none(lab: Lab) -> None:
    await _answered(lab, Modes(request_body=DUPLEX, response_body=NONE))


@check(
    "modes.response-streamed",
    level=Level.SHOULD,
    rule="Response body mode STREAMED: one answer for each message, none with a streamed_response",
    source=EXT_PROC,
    breach="streamed answers hang or break off behind a gateway in that mode",
)
async def response_streamed(lab: Lab) -> None:
    _no_pieces(await _answered(lab, Modes(request_body=DUPLEX, response_body=STREAMED)), "response_body")


@check(
    "modes.response-buffered",
    level=Level.SHOULD,
    rule="Response body mode BUFFERED: one answer for the whole body, no streamed_response",
    source=EXT_PROC + "; " + OBSERVED + "Envoy AI Gateway with its annotation",
    breach="answers hang or fail behind a gateway in that mode",
)
async def response_buffered(lab: Lab) -> None:
    _no_pieces(await _answered(lab, Modes(request_body=BUFFERED, response_body=BUFFERED)), "response_body")


async def _answered(lab: Lab, modes: Modes) -> Half:
    async with lab.exchange(modes=modes) as exchange:
        picked.completed(await exchange.request(lab.chat(2000)))
        half = await exchange.respond(_JSON_ANSWER)
    return picked.completed(half)


def _no_pieces(half: Half, name: str) -> None:
    for body in half.bodies(name):
        if body.response.body_mutation.WhichOneof("mutation") == "streamed_response":
            raise FailedError(f"{half}; a body answer is a streamed_response, which this mode does not know")


@check(
    "modes.observability",
    level=Level.SHOULD,
    rule="observability_mode: take the messages, and end well",
    source=EXT_PROC,
    breach="shadow traffic, as in trials of a new picker, fills logs and counters with failures",
)
async def observability(lab: Lab) -> None:
    async with lab.exchange(modes=Modes(observe=True)) as exchange:
        request = lab.chat(2000)
        await exchange.begin(request, pieces=len(request.chunks))
        await exchange.stream.send(messages.request_body(b"", end=True))
        await exchange.stream.half_close()
        await exchange.stream.drain()
        if not exchange.stream.ended_well:
            raise FailedError(f"{request}, observed and half-closed: the RPC {exchange.stream.end or 'stayed open'}")


CHECKS = (
    not_announced,
    waiting_announced,
    unknown_announced,
    request_buffered,
    request_buffered_partial,
    request_streamed,
    request_none,
    response_none,
    response_streamed,
    response_buffered,
    observability,
)
