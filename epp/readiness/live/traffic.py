"""`--traffic`: requests through the Gateway, and the proof that EPP and picked worker had them, not merely a 200."""

import asyncio
import secrets
import time

import aiohttp

from epp.readiness.checks.sources import OWN, PROTOCOL
from epp.readiness.live import requests
from epp.readiness.live.check import LiveCheck, live_check
from epp.readiness.live.lab import Lab
from epp.readiness.live.requests import OWN_HEADERS, Answer
from epp.readiness.rule import Group, Mode, NotApplicableError, Problem, warning

POLL_SECONDS = 1.0
MEANING = {
    404: "route not active (see 15-17)",
    500: "ext_proc broken (see 12, 35)",
    502: "the worker cannot be reached (see 42, 48)",
    503: "no eligible endpoint (see 36, 41)",
    504: "the Gateway's timeout ended it (see 20)",
}
TROUBLE = (aiohttp.ClientError, OSError, TimeoutError)
"""How a request fails that gets no answer."""


@live_check(
    50,
    "traffic.answers",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(9, 18, 25, 30, 41),
    rule="a chat through the Gateway is answered with 200 and words",
    source=OWN + "; /health alone precedes the registration of workers",
    fix="follow the status: 404 route, 500 ext_proc, 503 endpoints",
)
async def answers(lab: Lab) -> list[Problem]:
    url = lab.gateway_url()
    deadline, last = time.monotonic() + lab.demands.wait_seconds, "nothing was asked"
    while True:
        try:
            answer = await requests.chat(lab, requests.prompt())
            last = _complaint(answer)
            if not last:
                lab.seen = f"200 from {url}"
                return []
        except TROUBLE as problem:
            last = str(problem) or type(problem).__name__
        if time.monotonic() > deadline:
            return [Problem(f"{url}: {last}", f"Gateway {lab.chain.gateway_ref}")]
        await asyncio.sleep(POLL_SECONDS)


def _complaint(answer: Answer) -> str:
    if answer.status != 200:
        body = "an empty body" if not answer.body_bytes else answer.text
        return f"status {answer.status}, {MEANING.get(answer.status, 'see the Gateway')}: {body}"
    return "" if answer.text.strip() else "200 without words: no worker registered"


@live_check(
    51,
    "traffic.picker-asked",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(50,),
    rule="the EPP is asked about every request",
    source=OWN + ", counted at the EPP",
    fix="see failureMode (FailOpen hides a dead EPP), and route filters that switch the EPP off",
)
async def picker_asked(lab: Lab) -> list[Problem]:
    count = 3
    before = await _calm(lab)
    for _ in range(count):
        await requests.chat(lab, requests.prompt())
    asked = await _settled(lab, before, count)
    lab.seen = f"{count} requests, {asked:g} counted by the EPP"
    if asked < count:
        text = f"200 received but the EPP was not consulted (FailOpen or bypass): {asked:g} of {count}"
        return [Problem(text, "EPP")]
    return []


async def _settled(lab: Lab, before: float, wanted: int) -> float:
    """How far the EPP's counter rises; streams end a moment after their answers."""
    risen = 0.0
    for _ in range(20):
        risen = await requests.picker_count(lab) - before
        if risen >= wanted:
            break
        await asyncio.sleep(0.1)
    return risen


async def _calm(lab: Lab) -> float:
    """The EPP's counter, once the streams of earlier requests have ended; under other traffic, after a while."""
    last = await requests.picker_count(lab)
    for _ in range(20):
        await asyncio.sleep(0.2)
        now = await requests.picker_count(lab)
        if now == last:
            break
        last = now
    return last


@live_check(
    52,
    "traffic.pick-served",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(51,),
    rule="the worker that the EPP picked is the one that served, for each request",
    source=PROTOCOL + "; the workers' own counters",
    fix="see how the Gateway reads the pick (header or metadata), and whether it knows the endpoint yet",
)
async def pick_served(lab: Lab) -> list[Problem]:
    """One request at a time: the counter of the worker that the EPP's decision names rises.

    A second one may rise beside it: that of a worker that prefills, or of one that others ask.
    """
    problems: list[Problem] = []
    told = lab.places.admin is not None
    before = await requests.served_counts(lab)
    for _ in range(lab.demands.requests):
        answer = await requests.chat(lab, requests.prompt())
        served = await requests.served_since(lab, before)
        before = {place: count + served.get(place, 0.0) for place, count in before.items()}
        if answer.status != 200 or not served:
            problems.append(Problem(f"status {answer.status}, served by {', '.join(served) or 'no pod of the pool'}"))
        elif told:
            chosen = [choice.place for choice in await requests.choices(lab, 1)]
            if not set(chosen) & set(served):
                problems.append(Problem(f"EPP chose {', '.join(chosen)}, gateway served {', '.join(served)}"))
    if not told and not problems:
        return [warning("served inside the pool; whether by the picked worker, --epp-status would prove")]
    lab.seen = f"{lab.demands.requests} of {lab.demands.requests} served by the picked worker"
    return problems


@live_check(
    53,
    "traffic.streams",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(50,),
    rule="a streamed answer comes in pieces over time, and ends with [DONE]",
    source=OWN,
    fix="see response buffering in the Gateway, and the EPP's response mode",
)
async def streams(lab: Lab) -> list[Problem]:
    answer = await requests.chat(lab, requests.prompt(), stream=True, tokens=16)
    pieces, last = len(answer.chunk_seconds), (answer.chunk_seconds or (0.0,))[-1]
    lab.seen = f"{pieces} pieces over {last:.3f} s"
    if answer.status != 200 or not answer.done:
        return [Problem(f"status {answer.status}, {'no [DONE]' if answer.status == 200 else answer.text}")]
    return [Problem("response is buffered by the gateway")] if pieces < 2 else []


@live_check(
    54,
    "traffic.client-cannot-choose",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(52,),
    rule="routing headers that a client sets have no effect",
    source=PROTOCOL,
    fix="use an EPP that overwrites the destination header and removes the others on every request",
)
async def client_cannot_choose(lab: Lab) -> list[Problem]:
    before = await requests.served_counts(lab)
    places = list(before)
    for at in range(2 * len(places)):
        headers = OWN_HEADERS | {"x-gateway-destination-endpoint": places[0] if at % 2 else "127.0.0.1:1"}
        answer = await requests.chat(lab, requests.prompt(), headers=headers)
        if answer.status != 200:
            return [Problem(f"client-supplied destination header is honoured: status {answer.status}")]
    served = await requests.served_since(lab, before, 2 * len(places))
    lab.seen = f"{2 * len(places)} requests that named a worker went to {len(served)} workers"
    if sum(served.values()) < 2 * len(places):
        return [Problem("client-supplied destination header is honoured: requests left the pool")]
    return []


@live_check(
    55,
    "traffic.affinity",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(52,),
    rule="requests with the same long beginning go to the same worker",
    source=OWN,
    fix="see block size, tokenizer and KV events: `epp doctor`",
    advisory=True,
)
async def affinity(lab: Lab) -> list[Problem]:
    if len(lab.endpoints()) < 2:
        raise NotApplicableError("the pool has one endpoint")
    text = requests.prompt(200)
    before = await requests.served_counts(lab)
    for _ in range(6):
        await requests.chat(lab, f"{text} {secrets.token_hex(2)}")
    served = await requests.served_since(lab, before, 6)
    most = max(served.values(), default=0)
    lab.seen = f"{most:g} of 6 requests with one beginning went to one worker"
    return [] if most >= 5 else [warning(f"no prefix affinity: {lab.seen}")]


@live_check(
    56,
    "traffic.unmatched",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(50,),
    rule="a request that no route matches gets 404 from the Gateway, and the EPP is not asked",
    source="Gateway API v1, HTTPRoute matching",
    fix="see which route takes it",
)
async def unmatched(lab: Lab) -> list[Problem]:
    prefixes = [
        match.path.value.rstrip("/")
        for route in lab.chain.attached
        for rule in route.spec.rules or ()
        for match in rule.matches or ()
    ]
    if not all(prefixes) or not prefixes:
        raise NotApplicableError("the route matches every path")
    status, asked = 0, 0.0
    for _ in range(3):  # somebody else's request may be counted in between, but not each time
        before = await _calm(lab)
        status = (await requests.send(lab, "GET", f"/epp-readiness-{secrets.token_hex(4)}")).status
        asked = await _calm(lab) - before
        if status == 404 and not asked:
            return []
    return [Problem(f"unmatched request reached the pool: status {status}, EPP asked {asked:g} times")]


@live_check(
    60,
    "traffic.spread",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(52,),
    rule="every ready worker serves some of many different requests",
    source=OWN,
    fix="see `epp explain`: why is it never the cheapest?",
    advisory=True,
)
async def spread(lab: Lab) -> list[Problem]:
    before = await requests.served_counts(lab)
    count = min(200, max(4 * len(before), lab.demands.requests))
    await asyncio.gather(*(requests.chat(lab, requests.prompt(), tokens=8) for _ in range(count)))
    served = await requests.served_since(lab, before, count)
    lab.seen = f"{len(served)} of {len(before)} endpoints served {count} requests"
    return [
        warning(f"endpoint {place} was never chosen", f"endpoint {place}") for place in before if place not in served
    ]


CHECKS: tuple[LiveCheck, ...] = (
    answers,
    picker_asked,
    pick_served,
    streams,
    client_cannot_choose,
    affinity,
    unmatched,
    spread,
)
