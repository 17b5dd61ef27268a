"""What an EPP says of itself on its admin port; only what checks read is kept, so no name of a model or client."""

import aiohttp
import msgspec

from epp.readiness.snapshot.document import EppStatus

SECONDS = 5.0
MOST_BYTES = 16 * 1024 * 1024


class StatusError(Exception):
    """The admin port could not be read; the text says why."""


class _Process(msgspec.Struct):
    version: str
    ready: bool


class _Endpoint(msgspec.Struct):
    host_port: str


class _Pool(msgspec.Struct):
    endpoints: tuple[_Endpoint, ...]


class _Document(msgspec.Struct):
    process: _Process
    pool: _Pool


async def read_status(url: str) -> EppStatus:
    """The status at the admin port `url`. Raises StatusError."""
    try:
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/status") as answer:
            answer.raise_for_status()
            document = msgspec.json.decode(await answer.content.read(MOST_BYTES), type=_Document)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
        raise StatusError(f"{url}: {str(problem) or type(problem).__name__}") from None
    endpoints = tuple(sorted(endpoint.host_port for endpoint in document.pool.endpoints))
    return EppStatus(version=document.process.version, ready=document.process.ready, endpoints=endpoints)
