"""The subset hint: where a gateway narrows the choice for one request."""

from epp.conformance import picked
from epp.conformance.check import check
from epp.conformance.lab import Lab, get
from epp.conformance.messages import SUBSET, HttpRequest
from epp.conformance.sources import PROTOCOL
from epp.conformance.verdict import FailedError, SkippedError

FOREIGN = "192.0.2.1:9"
"""In no pool: the address is reserved for documentation (RFC 5737)."""


def _requests(lab: Lab) -> tuple[HttpRequest, HttpRequest]:
    return get(), lab.chat(2000, empty_end=True)


@check(
    "subset.binding",
    rule=f"P4: if metadata envoy.lb.subset_hint / {SUBSET} is set, choose only from it",
    source=PROTOCOL,
    breach="traffic splits, canaries and session rules of the gateway are ignored",
)
async def binding(lab: Lab) -> None:
    for endpoint in lab.endpoints()[:16]:
        for request in _requests(lab):
            half = await lab.ask(request, subset=[endpoint])
            _only(half.what, picked.routed(half), {endpoint}, [endpoint])


@check(
    "subset.several",
    rule="P4: choose only from a list of several",
    source=PROTOCOL,
    breach="traffic splits, canaries and session rules of the gateway are ignored",
)
async def several(lab: Lab) -> None:
    endpoints = lab.endpoints()
    if len(endpoints) < 3:
        raise SkippedError("fewer than three endpoints are known: give --endpoint ip:port for each")
    allowed = endpoints[1:3]
    for _ in range(8):
        half = await lab.ask(get(), subset=allowed)
        _only(half.what, picked.routed(half), set(allowed), allowed)


@check(
    "subset.ignores-strangers",
    rule="P4: entries of the list that are no endpoint of the pool do not count, the others do",
    source=PROTOCOL,
    breach="a hint that is slightly out of date, as while pods come and go, fails requests or sends them outside",
)
async def ignores_strangers(lab: Lab) -> None:
    endpoint = lab.endpoints()[0]
    for hint in ([FOREIGN, endpoint], [endpoint, FOREIGN]):
        half = await lab.ask(get(), subset=hint)
        _only(half.what, picked.routed(half), {endpoint}, hint)


@check(
    "subset.empty-503",
    rule="P5: an empty list is an ImmediateResponse 503",
    source=PROTOCOL,
    breach="a request that may go nowhere goes somewhere, or fails as an error that is not to be retried",
)
async def empty(lab: Lab) -> None:
    for request in _requests(lab):
        picked.refused(await lab.ask(request, subset=[]), 503)


@check(
    "subset.none-eligible-503",
    rule="P5: a list in which nothing is eligible is an ImmediateResponse 503",
    source=PROTOCOL,
    breach="a request that may go nowhere goes somewhere, or fails as an error that is not to be retried",
)
async def none_eligible(lab: Lab) -> None:
    for request in _requests(lab):
        picked.refused(await lab.ask(request, subset=[FOREIGN]), 503)


@check(
    "subset.port-counts",
    rule="P4: an entry with the address of an endpoint and another port is not that endpoint",
    source=PROTOCOL + "; P3: entries are ip:port",
    breach="with several ports or data-parallel ranks in one pod, requests go to the wrong rank",
)
async def port_counts(lab: Lab) -> None:
    ip, _, port = lab.endpoints()[0].rpartition(":")
    other = next(f"{ip}:{number}" for number in range(1, 4) if f"{ip}:{number}" not in lab.endpoints())
    half = await lab.ask(get(), subset=[other])
    if half.immediate is None:
        raise FailedError(f"{half.what}, subset [{other}]: picked {picked.in_header(half)} (port {port} is its own)")
    picked.refused(half, 503)


def _only(what: str, pick: str, allowed: set[str], hint: list[str]) -> None:
    outside = [entry for entry in pick.split(",") if picked.first(entry) not in allowed]
    if outside:
        raise FailedError(f"{what}, subset {hint}: picked {', '.join(outside)}")


CHECKS = (binding, several, ignores_strangers, empty, none_eligible, port_counts)
