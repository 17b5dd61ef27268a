"""The test hooks by which the Gateway conformance suite steers a picker; off in production, asked for by --hooks."""

from epp.conformance import picked
from epp.conformance.check import check
from epp.conformance.lab import Lab
from epp.conformance.messages import HttpRequest, HttpResponse
from epp.conformance.sources import SUITE
from epp.conformance.verdict import FailedError, SkippedError

STEER = "test-epp-endpoint-selection"
SERVED_ECHO = "x-conformance-test-served-endpoint"
ECHO_ORDER = "x-echo-set-header"
_FOREIGN = "192.0.2.1"
_BREACH = "the picker cannot take part in the Gateway conformance suite"


def _need(lab: Lab) -> None:
    if not lab.described.hooks:
        raise SkippedError("the test hooks are off in production: switch them on and give --hooks")


def _ip(endpoint: str) -> str:
    """As a pod's status has it: without brackets."""
    return endpoint.rpartition(":")[0].strip("[]")


def _steered(value: str) -> HttpRequest:
    return HttpRequest(method="GET", path="/", headers=((STEER, value.encode()),))


@check(
    "hooks.steering",
    rule=f"{STEER}: a list of ip:port and ip; only endpoints of the pool that it names may be picked",
    source=SUITE + " (GatewayFollowingEPPRouting, ...WithDataParallelism)",
    breach=_BREACH,
)
async def steering(lab: Lab) -> None:
    _need(lab)
    endpoints = lab.endpoints()
    for endpoint in endpoints[:8]:
        ip = _ip(endpoint)
        same_ip = {other for other in endpoints if _ip(other) == ip}
        cases = (
            (endpoint, {endpoint}),
            (ip, same_ip),
            (f"{_FOREIGN}, {endpoint}", {endpoint}),
        )
        for value, allowed in cases:
            half = await lab.ask(_steered(value))
            if picked.first(picked.routed(half)) not in allowed:
                raise FailedError(f"{STEER}: {value}: picked {picked.routed(half)}")


@check(
    "hooks.steering-over-subset",
    rule=f"{STEER} wins over the subset hint",
    source=SUITE + ", as its reference picker does",
    breach=_BREACH,
)
async def steering_over_subset(lab: Lab) -> None:
    _need(lab)
    endpoints = lab.endpoints()
    if len(endpoints) < 2:
        raise SkippedError("fewer than two endpoints are known: give --endpoint ip:port for each")
    half = await lab.ask(_steered(endpoints[0]), subset=[endpoints[1]])
    if picked.first(picked.routed(half)) != endpoints[0]:
        raise FailedError(f"{STEER}: {endpoints[0]}, subset [{endpoints[1]}]: picked {picked.routed(half)}")


@check(
    "hooks.strangers-answered",
    rule=f"{STEER} without a member of the pool is answered at once, by an error or otherwise inside the pool",
    source=SUITE + " (GatewayWeightedAcrossTwoInferencePools)",
    breach=_BREACH,
)
async def strangers(lab: Lab) -> None:
    _need(lab)
    half = await lab.ask(_steered(f"{_FOREIGN}:9"))
    if half.immediate is None and picked.routed(half).startswith(_FOREIGN):
        raise FailedError(f"{STEER}: {_FOREIGN}:9: picked {picked.routed(half)}")


@check(
    "hooks.served-echo",
    rule=f"The served endpoint of the response's metadata comes back in response header {SERVED_ECHO}",
    source=SUITE + " (GatewayDestinationEndpointServed, InferencePoolAppProtocol)",
    breach=_BREACH,
)
async def served_echo(lab: Lab) -> None:
    _need(lab)
    served = lab.endpoints()[0]
    async with lab.exchange() as exchange:
        picked.routed(await exchange.request(_steered(served)))
        half = await exchange.respond(HttpResponse(served=served, chunks=(b"{}",)))
    set_headers = [
        option
        for answer in half.answers
        for option in answer.response_headers.response.header_mutation.set_headers
        if option.header.key.lower() == SERVED_ECHO
    ]
    if [picked.value(option) for option in set_headers] != [served]:
        raise FailedError(f"served {served}: {SERVED_ECHO} is {[picked.value(option) for option in set_headers]}")


@check(
    "hooks.echo-order",
    rule=f"The request header {ECHO_ORDER} tells the echo backend to reflect the pick as {SERVED_ECHO}",
    source=SUITE + ", as its reference picker does",
    breach=_BREACH,
)
async def echo_order(lab: Lab) -> None:
    _need(lab)
    half = await lab.ask(_steered(lab.endpoints()[0]))
    want = f"{SERVED_ECHO}:{picked.routed(half)}"
    got = [picked.value(option).replace(" ", "") for option in picked.set_by(half, ECHO_ORDER)]
    if got != [want]:
        raise FailedError(f"{ECHO_ORDER} is {got}, expected {want}")


CHECKS = (steering, steering_over_subset, strangers, served_echo, echo_order)
