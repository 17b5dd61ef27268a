"""Headers: what a client must not reach, and what the picker must not touch."""

from epp.conformance import picked
from epp.conformance.check import Level, check
from epp.conformance.lab import Lab, get
from epp.conformance.messages import DESTINATION, SERVED, SUBSET, Header, HttpRequest, Modes, Shape
from epp.conformance.sources import OBSERVED, PROTOCOL
from epp.conformance.verdict import FailedError

_FORGED = "192.0.2.66:80"
_INTERNAL = (
    SUBSET,
    SERVED,
    "x-prefiller-host-port",
    "x-prefiller-url",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-dynamo-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-dp-rank",
    "x-dynamo-prefill-dp-rank",
    "x-dynamo-routing-mode",
    "x-worker-instance-id",
    "x-prefill-instance-id",
    "x-data-parallel-rank",
)
_OF_THE_CLIENT = (
    ("authorization", b"Bearer conformance"),
    ("accept", b"text/event-stream"),
    ("user-agent", b"conformance/1"),
    ("x-request-id", b"3f0c2f5e-0001-4000-8000-000000000001"),
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("x-conformance", b"kept"),
)
_HOP_BY_HOP = ("transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "host")


def _with(lab: Lab, headers: tuple[Header, ...]) -> list[HttpRequest]:
    """Requests of each kind with these headers: without a body, chat, and one that cannot be parsed."""
    json = (("content-type", b"application/json"), *headers)
    return [
        HttpRequest(method="GET", path="/v1/models", headers=headers),
        HttpRequest(headers=json, chunks=lab.chat(2000).chunks),
        HttpRequest(headers=json, chunks=(b"{not json",)),
    ]


@check(
    "hygiene.destination-from-client",
    rule=f"P7: the endpoint in {DESTINATION} is the picker's, whatever the client put there",
    source=PROTOCOL + "; llm-d-router #242; agentgateway PR #3144",
    breach="a client reaches any address in the cluster through the gateway, or always the worker it likes",
)
async def destination_from_client(lab: Lab) -> None:
    forged = _FORGED.encode()
    for headers in (
        ((DESTINATION, forged),),
        ((DESTINATION, forged), (DESTINATION, b"192.0.2.67:80")),
        ((DESTINATION.title(), forged),),
    ):
        for request in _with(lab, headers):
            half = await lab.ask(request)
            if half.immediate is not None:
                continue
            picked.routed(half)
            got = picked.worker_headers(request, half).get(DESTINATION, [])
            if len(got) != 1 or got[0].startswith(b"192.0.2."):
                raise FailedError(f"{half.what} with the client's {headers[0][0]}: the worker gets {got}")


@check(
    "hygiene.subset-from-client",
    rule=f"P3: the subset comes in metadata from the gateway; a client's header {SUBSET} is no hint",
    source=PROTOCOL,
    breach="a client chooses its worker, or makes its own requests fail with 503 and rings alerts",
)
async def subset_from_client(lab: Lab) -> None:
    for request in _with(lab, ((SUBSET, _FORGED.encode()),))[:2]:
        pick = picked.routed(await lab.ask(request))
        if picked.first(pick) == _FORGED:
            raise FailedError(f"{request}: picked {pick}, which a client named")


@check(
    "hygiene.internal-headers",
    level=Level.SHOULD,
    rule="Headers by which pickers steer sidecars (llm-d, Dynamo) are set or removed on every request",
    source="llm-d-router #242 and #979; dynamo #13405",
    breach="a client makes a worker's sidecar send prompts to an address that it names",
)
async def internal_headers(lab: Lab) -> None:
    forged = tuple((name, _FORGED.encode()) for name in _INTERNAL)
    for request in _with(lab, forged):
        half = await lab.ask(request)
        if half.immediate is not None:
            continue
        picked.routed(half)
        got = picked.worker_headers(request, half)
        left = [name for name in _INTERNAL if _FORGED.encode() in got.get(name, [])]
        if left:
            raise FailedError(f"{half.what}: the worker gets the client's {', '.join(left)}")


@check(
    "hygiene.client-headers-kept",
    level=Level.SHOULD,
    rule="Headers that are not the picker's reach the worker as the client sent them",
    source="GIE #2993: mutate only what you own",
    breach="authentication, tracing and content negotiation break between client and worker",
)
async def client_headers_kept(lab: Lab) -> None:
    for request in _with(lab, _OF_THE_CLIENT)[:2]:
        half = await lab.routed(request)
        got = picked.worker_headers(request, half)
        changed = [name for name, content in request.headers if got.get(name) != [content]]
        if changed:
            raise FailedError(f"{half.what}: changed {', '.join(changed)}")


@check(
    "hygiene.no-hop-by-hop",
    rule="Set no hop-by-hop header on the request; a content-length, if set, is that of the body",
    source="RFC 9110 section 7.6.1; GIE #2993; envoy #39035",
    breach="bodies are cut or refused at the next hop",
)
async def no_hop_by_hop(lab: Lab) -> None:
    headers = (("te", b"trailers"), ("connection", b"keep-alive"))
    for request in _with(lab, headers)[:2]:
        half = await lab.routed(request)
        for name in _HOP_BY_HOP:
            if picked.set_by(half, name):
                raise FailedError(f"{half.what}: the answer sets {name}")
        for option in picked.set_by(half, "content-length"):
            if picked.value(option) != str(len(request.body)):
                raise FailedError(f"{half.what}: content-length {picked.value(option)} for {len(request.body)} bytes")


@check(
    "hygiene.bytes-in-values",
    rule="A header value that is not UTF-8 breaks nothing",
    source="RFC 9110 section 5.5: values are bytes; " + OBSERVED + "gateways send them in raw_value",
    breach="one client with an odd header gets 500, or takes the picker down",
)
async def bytes_in_values(lab: Lab) -> None:
    odd = (("x-odd", b"\xff\xfe\x80"), ("x-request-id", b"caf\xe9"))
    for request in _with(lab, odd)[:2]:
        await lab.routed(request)


@check(
    "hygiene.no-pseudo-headers",
    rule="Never require pseudo-headers; take raw_value, else value",
    source=OBSERVED + "NGINX Gateway Fabric sends no :path and :method, agentgateway sends them in value",
    breach="every request fails behind these gateways",
)
async def no_pseudo_headers(lab: Lab) -> None:
    for shape in (Shape.NGINX, Shape.AGENTGATEWAY):
        for request in (get(), lab.chat(2000)):
            half = await lab.ask(request, shape=shape, modes=Modes(announced=shape is Shape.AGENTGATEWAY))
            half.what += f" as {shape} sends it"
            picked.routed(half)


CHECKS = (
    destination_from_client,
    subset_from_client,
    internal_headers,
    client_headers_kept,
    no_hop_by_hop,
    bytes_in_values,
    no_pseudo_headers,
)
