"""What can be learnt from the workers over the network."""

import asyncio
from collections.abc import Sequence

import aiohttp

from epp.admin.doctor.finding import Finding, error, warning
from epp.endpoints.endpoint import Endpoint, host_port
from epp.endpoints.metrics_page import metrics_path, read_page

MOST_WORKERS = 50
"""Workers that are looked at; a fault of a pool shows in the first few."""
SECONDS = 3.0


async def worker_findings(endpoints: Sequence[Endpoint], *, block_size: int, kv_events: bool) -> list[Finding]:
    """What is wrong with the first workers, in their order."""
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        looks = [_look(session, endpoint, block_size, kv_events) for endpoint in endpoints[:MOST_WORKERS]]
        return [finding for found in await asyncio.gather(*looks) for finding in found]


async def _look(session: aiohttp.ClientSession, endpoint: Endpoint, block_size: int, kv_events: bool) -> list[Finding]:
    where = f"worker {endpoint.name}"
    if not await opens(endpoint.address, endpoint.port):
        fix = "see whether the engine runs and whether a NetworkPolicy lets this pod reach it"
        return [error(where, f"{endpoint.host_port} does not accept connections", fix)]
    findings = await _metrics(session, endpoint, where, endpoint.block_size or block_size)
    if kv_events and endpoint.events_port is not None and not await opens(endpoint.address, endpoint.events_port):
        what = f"nothing publishes KV events on port {endpoint.events_port}"
        fix = "give vLLM --kv-events-config with an endpoint tcp://*:PORT (tcp://0.0.0.0 connects, it does not bind)"
        findings.append(error(where, what, fix))
    if kv_events and endpoint.events_port is not None and endpoint.replay_port is None:
        what = "no replay port is known: what it cached before this EPP started is learnt only from traffic"
        findings.append(warning(where, what, "set replay_endpoint in --kv-events-config, and EPP_REPLAY_PORT"))
    return findings


async def _metrics(session: aiohttp.ClientSession, endpoint: Endpoint, where: str, block_size: int) -> list[Finding]:
    place = host_port(endpoint.address, endpoint.metrics_port or endpoint.port)
    try:
        async with session.get(f"http://{place}{metrics_path(endpoint.engine)}") as answer:
            if not answer.ok:
                fix = "set the annotation epp.metrics-port, or EPP_ENGINE_METRICS=false"
                return [warning(where, f"{place} has no metrics (HTTP {answer.status})", fix)]
            sample = read_page(await answer.read(), endpoint.engine)
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        fix = "set the annotation epp.metrics-port, or EPP_ENGINE_METRICS=false"
        return [warning(where, f"{place} has no metrics ({type(problem).__name__})", fix)]
    if sample.block_size is not None and sample.block_size != block_size:
        what = f"its blocks have {sample.block_size} tokens, ours {block_size}: no prefix would match"
        return [error(where, what, f"set EPP_BLOCK_SIZE={sample.block_size}, or the annotation epp.block-size")]
    return []


async def opens(address: str, port: int) -> bool:
    """Whether somebody accepts connections there, within SECONDS."""
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
