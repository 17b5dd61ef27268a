"""The pick: what it says, and where it stands in the answer."""

import time

from epp._pb.base_pb2 import HeaderValueOption
from epp.conformance import address, picked
from epp.conformance.check import Level, check
from epp.conformance.exchange import Half, kind
from epp.conformance.lab import Lab, get
from epp.conformance.messages import DESTINATION
from epp.conformance.sources import EXT_PROC, OBSERVED, PROTOCOL, SUITE
from epp.conformance.verdict import FailedError, SkippedError

_IN_TIME_SECONDS = 0.2


async def _picks(lab: Lab) -> list[Half]:
    """A pick for a request without a body, and one for a chat request."""
    return [await lab.routed(request) for request in (get(), lab.chat(2000, empty_end=True))]


@check(
    "pick.header-only",
    rule="Wire rule 8: a request without a body is routed by the answer to its headers",
    source=EXT_PROC + "; " + SUITE + " (HTTPRouteMultipleGatewaysDifferentPools)",
    breach="GET /v1/models and every other request without a body fails or hangs",
)
async def header_only(lab: Lab) -> None:
    half = await lab.routed(get())
    if half.kinds != ["request_headers"]:
        raise FailedError(str(half))


@check(
    "pick.header-and-metadata",
    rule=f"P7: name the endpoint both in header {DESTINATION} and in dynamic_metadata envoy.lb, same key",
    source=PROTOCOL,
    breach="Istio reads only the metadata, agentgateway, Envoy AI Gateway and NGINX only the header: half of them fail",
)
async def header_and_metadata(lab: Lab) -> None:
    for half in await _picks(lab):
        if not picked.in_header(half):
            raise FailedError(f"{half.what}: no header {DESTINATION}")
        if not picked.in_metadata(half):
            raise FailedError(f"{half.what}: no metadata envoy.lb / {DESTINATION}")


@check(
    "pick.same-in-both",
    rule="P9: header and metadata name the same",
    source=PROTOCOL,
    breach="which worker gets the request depends on the gateway, and load counts are wrong for one of them",
)
async def same_in_both(lab: Lab) -> None:
    for half in await _picks(lab):
        header, metadata = picked.in_header(half), picked.in_metadata(half)
        if header and metadata and header != metadata:
            raise FailedError(f"{half.what}: header {header}, metadata {metadata}")


@check(
    "pick.form",
    rule="P8: the value is ip:port, or a list of them with commas between",
    source=PROTOCOL,
    breach="the gateway cannot parse the endpoint: 503, or a random worker",
)
async def form(lab: Lab) -> None:
    for half in await _picks(lab):
        for value in {picked.in_header(half), picked.in_metadata(half)} - {""}:
            for entry in value.split(","):
                try:
                    address.endpoint(entry)
                except address.AddressError as error:
                    raise FailedError(f"{half.what}: {error}") from None


@check(
    "pick.in-pool",
    rule="P6: without a subset hint, choose among the endpoints of the pool",
    source=PROTOCOL,
    breach="requests go to pods that left, or to workers of another pool",
)
async def in_pool(lab: Lab) -> None:
    if not lab.described.endpoints:
        raise SkippedError("the pool is not described: give --endpoint ip:port for each")
    for _ in range(5):
        for half in await _picks(lab):
            for entry in picked.routed(half).split(","):
                if picked.first(entry) not in lab.described.endpoints:
                    raise FailedError(f"{half.what}: picked {entry}, which is no described endpoint")


@check(
    "pick.one-by-default",
    level=Level.SHOULD,
    rule="Name one endpoint unless the operator asked for a list",
    source=OBSERVED + "Istio alone walks a list; agentgateway and Envoy AI Gateway answer 503 to one",
    breach="behind agentgateway and Envoy AI Gateway every request fails with 503",
)
async def one_by_default(lab: Lab) -> None:
    for half in await _picks(lab):
        if "," in picked.routed(half):
            raise FailedError(f"{half.what}: a list of {picked.routed(half).count(',') + 1} endpoints")


@check(
    "pick.in-headers-answer",
    rule="The pick stands in the answer to request_headers, before any body answer",
    source=EXT_PROC + "; " + OBSERVED + "Envoy AI Gateway and agentgateway lose a pick on the body answer",
    breach="the gateway has chosen the worker by itself before the pick comes, or answers 503",
)
async def in_headers_answer(lab: Lab) -> None:
    half = await lab.routed(lab.chat(2000, empty_end=True))
    head = Half(half.what, [answer for answer in half.answers if kind(answer) == "request_headers"])
    if not (picked.in_header(head) or picked.in_metadata(head)):
        raise FailedError(f"{half}; the answer to the headers names no endpoint")


@check(
    "pick.raw-value",
    rule="Header values stand in raw_value",
    source=OBSERVED + "a header in value is an empty header for Envoy and for NGINX Gateway Fabric",
    breach="the gateway sees an empty destination: 503 on every request",
)
async def raw_value(lab: Lab) -> None:
    for half in await _picks(lab):
        for option in picked.set_by(half, DESTINATION):
            if not option.header.raw_value:
                raise FailedError(f"{half.what}: {DESTINATION} has value={option.header.value!r} and no raw_value")


@check(
    "pick.replaces",
    rule="The destination header replaces what is there: OVERWRITE_IF_EXISTS_OR_ADD",
    source=OBSERVED + "every gateway forwards a client's own header when the picker's does not replace it",
    breach="a client that sends the header itself chooses the worker, or any other address in the cluster",
)
async def replaces(lab: Lab) -> None:
    for half in await _picks(lab):
        options = picked.set_by(half, DESTINATION)
        if len(options) > 1:
            raise FailedError(f"{half.what}: the header is set {len(options)} times")
        if options and options[0].append_action == HeaderValueOption.ADD_IF_ABSENT:
            raise FailedError(f"{half.what}: append_action is ADD_IF_ABSENT")


@check(
    "pick.clears-route-cache",
    level=Level.SHOULD,
    rule="The answer that names the endpoint sets clear_route_cache",
    source=SUITE + ", as its reference picker does; Envoy caches the route before ext_proc runs",
    breach="gateways that route by the destination header go on with the route chosen before the pick",
)
async def clears_route_cache(lab: Lab) -> None:
    for half in await _picks(lab):
        if not any(answer.request_headers.response.clear_route_cache for answer in half.answers):
            raise FailedError(f"{half.what}: clear_route_cache is not set")


@check(
    "pick.no-mode-override",
    level=Level.SHOULD,
    rule="Wire rule 9: send no mode_override",
    source=OBSERVED + "envoy #44201; agentgateway, Istio and kgateway ignore it",
    breach="chunked requests hang behind Envoy where it is allowed, and nothing changes elsewhere",
)
async def no_mode_override(lab: Lab) -> None:
    for half in await _picks(lab):
        if any(answer.HasField("mode_override") for answer in half.answers):
            raise FailedError(f"{half.what}: an answer has mode_override")


@check(
    "pick.in-time",
    level=Level.SHOULD,
    rule=f"A pick without queueing takes under {_IN_TIME_SECONDS * 1000:.0f} ms (best of five)",
    source=OBSERVED + "Envoy's default message timeout is 200 ms; Envoy Gateway keeps it unless set",
    breach="the gateway gives up first: 504, or 500 on older versions",
)
async def in_time(lab: Lab) -> None:
    best = float("inf")
    for _ in range(5):
        begun = time.monotonic()
        await lab.routed(get())
        best = min(best, time.monotonic() - begun)
    if best > _IN_TIME_SECONDS:
        raise FailedError(f"the fastest of five picks took {best * 1000:.0f} ms")


CHECKS = (
    header_only,
    header_and_metadata,
    same_in_both,
    form,
    in_pool,
    one_by_default,
    in_headers_answer,
    raw_value,
    replaces,
    clears_route_cache,
    no_mode_override,
    in_time,
)
