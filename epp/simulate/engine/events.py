"""KV events as vLLM publishes them: msgpack batches on a PUB socket, past ones again from a ROUTER socket.

Wire facts: live frames are (topic, 8-byte big-endian sequence number from 0, batch); a replay request is
(empty, start) on a DEALER and each answer (empty, topic, number, batch), without the topic before vLLM 0.26,
ended by the number of eight FF bytes and an empty batch. Batches hold arrays before vLLM 0.24, maps since.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import zmq
import zmq.asyncio

from epp.simulate.engine.cache import CacheEvent, Namespace, Removed, Stored

END = b"\xff" * 8
MEDIUM = "GPU"


class EventsForm(StrEnum):
    """How one event is laid out."""

    MAP = "map"
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConfig:
    """Where and how events are published; port 0: chosen by the system, None: not at all."""

    host: str = "0.0.0.0"  # noqa: S104 - a worker serves its pod network
    port: int | None = None
    replay_port: int | None = None
    form: EventsForm = EventsForm.MAP
    replay_frames: int = 4
    topic: str = ""
    buffer_steps: int = 10_000


class EventEncoder:
    """Turns cache events into the events of a batch."""

    def __init__(self, form: EventsForm, block_size: int, rank: int) -> None:
        self._map = form is EventsForm.MAP
        self._block_size = block_size
        self._rank = rank
        self._encode = msgspec.msgpack.Encoder().encode

    def batch(self, events: Sequence[CacheEvent], now: float) -> bytes:
        """One batch; `now` is wall-clock seconds."""
        return self._encode([now, [self._event(event) for event in events], self._rank])

    def _event(self, event: CacheEvent) -> dict[str, object] | list[object]:
        if isinstance(event, Stored):
            return self._stored(event)
        if isinstance(event, Removed):
            fields = {"type": "BlockRemoved", "block_hashes": [event.hash], "medium": MEDIUM, "group_idx": 0}
        else:
            fields = {"type": "AllBlocksCleared"}
        return fields if self._map else list(fields.values())

    def _stored(self, event: Stored) -> dict[str, object] | list[object]:
        fields: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": event.tokens,
            "block_size": self._block_size,
            "lora_id": None if event.namespace.lora is None else 1,
            "medium": MEDIUM,
            "lora_name": event.namespace.lora,
            "extra_keys": _extra_keys(event.namespace, len(event.hashes), event.first),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        if self._map:
            return fields
        return [*fields.values(), None]  # the array also has the sliding window


def _extra_keys(namespace: Namespace, blocks: int, first: bool) -> list[list[str] | None]:
    """Per block, what besides its tokens went into its hash: the LoRA name; the salt in a first block only."""
    lora = [namespace.lora] if namespace.lora is not None else []
    salted = [*lora, namespace.salt] if first and namespace.salt is not None else lora
    return [salted or None, *([lora or None] * (blocks - 1))]


class Publisher:
    """The two sockets of one rank."""

    def __init__(self, config: EventsConfig, encoder: EventEncoder) -> None:
        self._config = config
        self._encoder = encoder
        self._topic = config.topic.encode()
        self._sequence = 0
        self._past: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._context: zmq.asyncio.Context | None = None
        self._live: zmq.asyncio.Socket | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._answering: asyncio.Task[None] | None = None
        self.port: int | None = None
        self.replay_port: int | None = None

    def start(self) -> None:
        """Bind; the real ports are in `port` and `replay_port` afterwards.

        Raises zmq.ZMQError when a port is taken.
        """
        config = self._config
        self._context = zmq.asyncio.Context()
        if config.port is not None:
            self._live = self._context.socket(zmq.PUB)
            self._live.set_hwm(100_000)
            self.port = _bind(self._live, config.host, config.port)
        if config.replay_port is not None:
            self._replay = self._context.socket(zmq.ROUTER)
            self._replay.set_hwm(2 * (config.buffer_steps + 1))
            self.replay_port = _bind(self._replay, config.host, config.replay_port)
            self._answering = asyncio.create_task(self._answer_replays(self._replay), name="replay")

    def publish(self, events: list[CacheEvent]) -> None:
        """Send `events` as one batch and empty the list."""
        if not events or self._live is None:
            events.clear()
            return
        number = self._sequence.to_bytes(8, "big")
        batch = self._encoder.batch(events, time.time())
        events.clear()
        self._sequence += 1
        self._past.append((number, batch))
        self._live.send_multipart([self._topic, number, batch], zmq.NOBLOCK)

    async def stop(self) -> None:
        """Close both sockets."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        for socket in (self._live, self._replay):
            if socket is not None:
                socket.close(linger=0)
        if self._context is not None:
            self._context.term()

    async def _answer_replays(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            request = await socket.recv_multipart()
            if len(request) == 3 and len(request[2]) == 8:
                await self._replay_from(socket, request[0], int.from_bytes(request[2], "big"))

    async def _replay_from(self, socket: zmq.asyncio.Socket, client: bytes, start: int) -> None:
        named = self._config.replay_frames == 4
        head = [client, b"", self._topic] if named else [client, b""]
        for number, batch in list(self._past):
            if int.from_bytes(number, "big") >= start:
                await socket.send_multipart([*head, number, batch])
        await socket.send_multipart([client, b"", *([b""] if named else []), END, b""])


def _bind(socket: zmq.asyncio.Socket, host: str, port: int) -> int:
    socket.bind(f"tcp://{host}:{port or '*'}")
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
