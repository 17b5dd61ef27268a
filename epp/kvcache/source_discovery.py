"""Asks an engine where it publishes KV events, when nobody has configured that.

vLLM from 0.31 on answers `GET /kv_event_sources` with a map of rank to its publisher's real endpoints; SGLang names
base ports in `GET /server_info`. An answer names ports only: the address is always that of the worker itself.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from epp.endpoints.endpoint import Endpoint
from epp.kvcache.sources import Source, address

MAX_ANSWER_BYTES = 1 << 20
MAX_RANKS = 64

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Rank = Annotated[int, Meta(ge=0, le=65535)]


Reader = Callable[[Endpoint, bytes], list[Source]]


class _VllmSource(msgspec.Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    publisher: str | None = None
    topic: str = ""


class _SglangEvents(msgspec.Struct):
    endpoint_port_base: _Port
    publisher: str = "zmq"
    dp_size: Annotated[int, Meta(ge=1)] = 1
    replay_endpoint_port_base: _Port | None = None
    block_size: Annotated[int, Meta(ge=1, le=65536)] | None = None
    topic: str = ""


class _SglangInfo(msgspec.Struct):
    kv_events: _SglangEvents | None = None


_decode_vllm = msgspec.json.Decoder(dict[_Rank, _VllmSource], strict=False).decode
_decode_sglang = msgspec.json.Decoder(_SglangInfo).decode


async def discover(endpoint: Endpoint, timeout_seconds: float) -> list[Source]:
    """The publishers that the engine names, in the order of their ranks; none when it does not say."""
    questions = [("/kv_event_sources", from_vllm), ("/server_info", from_sglang)]
    if endpoint.engine == "sglang":
        questions.reverse()
    for path, understand in questions:
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await ask(endpoint, path)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            continue
        sources = understood(understand, endpoint, answer)
        if sources:
            return sources
    return []


def understood(understand: Reader, endpoint: Endpoint, answer: bytes) -> list[Source]:
    """Publishers in an answer; none in one that makes no sense."""
    try:
        return understand(endpoint, answer)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []


def from_vllm(endpoint: Endpoint, document: bytes) -> list[Source]:
    """Publishers in an answer to `/kv_event_sources`. Raises msgspec.MsgspecError."""
    sources = []
    for rank, said in sorted(_decode_vllm(document).items())[:MAX_RANKS]:
        events, replay = _port(said.endpoint), _port(said.replay_endpoint)
        if events is not None and said.publisher in (None, "zmq"):
            replays = None if replay is None else address(endpoint, replay)
            sources.append(Source(rank, address(endpoint, events), replays, said.topic))
    return sources


def from_sglang(endpoint: Endpoint, document: bytes) -> list[Source]:
    """Publishers in an answer to `/server_info`. Raises msgspec.MsgspecError."""
    said = _decode_sglang(document).kv_events
    if said is None or said.publisher != "zmq":
        return []
    last = max(said.endpoint_port_base, said.replay_endpoint_port_base or 0)
    replay = said.replay_endpoint_port_base
    return [
        Source(
            rank,
            address(endpoint, said.endpoint_port_base + rank),
            None if replay is None else address(endpoint, replay + rank),
            said.topic,
            said.block_size,
        )
        for rank in range(min(said.dp_size, MAX_RANKS, 65536 - last))
    ]


def _port(zmq_endpoint: str | None) -> int | None:
    """The port of `tcp://host:port`; None for anything else."""
    if zmq_endpoint is None or not zmq_endpoint.startswith("tcp://"):
        return None
    port = zmq_endpoint.rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535 else None


async def ask(endpoint: Endpoint, path: str) -> bytes:
    """The body of a 200 answer; empty for any other. Raises OSError or asyncio.IncompleteReadError."""
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port, limit=MAX_ANSWER_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {endpoint.host_port}\r\nAccept: application/json\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head[9:12] != b"200":
            return b""
        body = bytearray()
        while len(body) <= MAX_ANSWER_BYTES and (part := await reader.read(65536)):
            body += part
        return bytes(body) if len(body) <= MAX_ANSWER_BYTES else b""
    finally:
        writer.close()
