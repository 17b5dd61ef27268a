"""Requests through the Gateway, and who served them."""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from epp.readiness.chain import UnreadableError
from epp.readiness.live.lab import Lab
from epp.readiness.snapshot.core_objects import Pod

MOST_BYTES = 1024 * 1024
"""Of an answer that are read."""
MOST_PAGE_BYTES = 32 * MOST_BYTES
"""Of a metrics page; a larger one is refused, since sums over a part of it would be wrong."""
COUNTERS = (
    "epp_exchanges_total",
    "dynamo_epp_requests_total",
    "inference_objective_request_total",
    "inference_model_request_total",
    "llm_d_epp_request_total",
)
"""Metrics by which pickers count requests, ours first."""
SERVED = ("vllm:request_success_total", "sglang:num_requests_total")
"""Metrics by which engines count finished requests."""
OWN_HEADERS = {
    "x-gateway-destination-endpoint": "127.0.0.1:1",
    "x-dynamo-worker-instance-id": "1",
    "x-dynamo-routing-mode": "aggregated",
}
"""What a client could set to name a worker itself."""
_RESULTS = re.compile(r'^epp_disaggregation_total\{result="(\w+)"\} +([0-9.eE+-]+)', re.MULTILINE)
_SAMPLE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? +([0-9.eE+-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request."""

    status: int
    text: str
    """What the model said, or the beginning of the body."""
    body_bytes: int
    chunk_seconds: tuple[float, ...] = ()
    """When each chunk came, after the first."""
    done: bool = False
    """Whether a stream ended with [DONE]."""


def prompt(words: int = 8) -> str:
    """A text that no cache holds."""
    return " ".join(["readiness", *(secrets.token_hex(3) for _ in range(words))])


async def chat(
    lab: Lab, text: str, *, stream: bool = False, tokens: int = 4, headers: Mapping[str, str] | None = None
) -> Answer:
    """One chat through the Gateway. Raises aiohttp.ClientError, OSError and TimeoutError."""
    document = {
        "model": lab.demands.model or "",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": stream,
    }
    return await send(lab, "POST", "/v1/chat/completions", document, headers)


async def send(
    lab: Lab, method: str, path: str, document: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request through the Gateway."""
    given = dict(headers or {})
    if (host := lab.host()) is not None:
        given["host"] = host
    if lab.demands.api_key is not None:
        given["authorization"] = f"Bearer {lab.demands.api_key}"
    timeout = aiohttp.ClientTimeout(total=lab.demands.seconds)
    async with lab.session.request(
        method, lab.gateway_url() + path, json=document, headers=given, timeout=timeout, allow_redirects=False
    ) as answer:
        data, arrived = bytearray(), []
        async for chunk in answer.content.iter_any():
            arrived.append(time.monotonic())
            data += chunk
            if len(data) > MOST_BYTES:
                break
        said = _said(bytes(data), streamed=answer.content_type == "text/event-stream")
        gaps = tuple(moment - arrived[0] for moment in arrived)
        return Answer(answer.status, said, len(data), gaps, b"data: [DONE]" in data)


def _said(data: bytes, *, streamed: bool) -> str:
    """The assistant's content; of another body its beginning."""
    texts = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")] if streamed else [data]
    said = []
    for text in texts:
        try:
            choice = json.loads(text)["choices"][0]
            part = choice.get("message") or choice.get("delta") or {}
            said.append(str(part.get("content") or part.get("reasoning_content") or ""))
        except (ValueError, LookupError, TypeError, AttributeError):
            return data[:200].decode(errors="replace")
    return "".join(said)


async def picker_count(lab: Lab) -> float:
    """Requests that the EPP has been asked about, over all its pods. Raises UnreadableError."""
    total = 0.0
    for url in lab.metrics_places():
        samples = await _samples(lab, url)
        found = next((samples[name] for name in COUNTERS if name in samples), None)
        if found is None:
            raise UnreadableError(f"{url} has none of {', '.join(COUNTERS)}: requests cannot be counted at the EPP")
        total += found
    return total


async def served_counts(lab: Lab, *, without: Pod | None = None) -> dict[str, float]:
    """Finished requests by endpoint `ip:port`, but for those of `without`.

    Raises UnreadableError when an engine does not count.
    """
    counts: dict[str, float] = {}
    for place, pod in lab.endpoints().items():
        if pod is without:
            continue
        samples = await _samples(lab, f"http://{place}/metrics")
        found = next((samples[name] for name in SERVED if name in samples), None)
        if found is None:
            raise UnreadableError(f"{place}/metrics has none of {', '.join(SERVED)}")
        counts[place] = found
    return counts


async def served_since(
    lab: Lab, before: Mapping[str, float], wanted: int = 1, *, without: Pod | None = None
) -> dict[str, float]:
    """Who served how many since `before`; waits a little for `wanted`, as engines count after they answer.

    Raises UnreadableError.
    """
    served: dict[str, float] = {}
    for _ in range(20):
        after = await served_counts(lab, without=without)
        rises = {place: after[place] - before.get(place, 0.0) for place in after}
        served = {place: rise for place, rise in rises.items() if rise > 0}
        if sum(served.values()) >= wanted:
            break
        await asyncio.sleep(0.1)
    return served


async def disaggregations(lab: Lab) -> dict[str, float]:
    """How the EPP has served requests of a pool with prefill workers, by result. Raises UnreadableError."""
    counts: dict[str, float] = {}
    for url in lab.metrics_places():
        for result, value in _RESULTS.findall(await _page(lab, url)):
            counts[result] = counts.get(result, 0.0) + float(value)
    return counts


async def disaggregated_since(lab: Lab, before: Mapping[str, float]) -> set[str]:
    """The results that were counted since; none after a wait: the EPP does not count. Raises UnreadableError."""
    for _ in range(10):
        after = await disaggregations(lab)
        risen = {result for result, count in after.items() if count > before.get(result, 0.0)}
        if risen:
            return risen
        await asyncio.sleep(0.1)
    return set()


async def _samples(lab: Lab, url: str) -> dict[str, float]:
    """Sums of samples by metric. Raises UnreadableError."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(await _page(lab, url)):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


async def _page(lab: Lab, url: str) -> str:
    """The metrics of a process as text. Raises UnreadableError."""
    try:
        async with lab.session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as answer:
            if not answer.ok:
                raise UnreadableError(f"{url} answers {answer.status}")
            data = bytearray()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > MOST_PAGE_BYTES:
                    raise UnreadableError(f"{url} tells more than {MOST_PAGE_BYTES} bytes")
            return data.decode(errors="replace")
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise UnreadableError(f"{url} cannot be read: {str(problem) or type(problem).__name__}") from None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the EPP says it chose for one request."""

    request_id: str
    place: str


async def choices(lab: Lab, count: int) -> list[Choice]:
    """The EPP's last decisions, newest first, by its admin port. Raises UnreadableError."""
    if lab.places.admin is None:
        raise UnreadableError("what the EPP chose is told by its admin port only: give --epp-status")
    url = f"{lab.places.admin.rstrip('/')}/decisions"
    try:
        async with lab.session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as answer:
            answer.raise_for_status()
            document = await answer.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
        raise UnreadableError(f"{url} cannot be read: {str(problem) or type(problem).__name__}") from None
    return list(_choices(document))[:count]


def _choices(document: object) -> Iterable[Choice]:
    """Of epp's decision records."""
    for record in document if isinstance(document, list) else ():
        places = {one["name"]: one["host_port"] for one in record["candidates"]}
        yield Choice(record["request_id"], places.get(record["chosen"], record["chosen"]))
