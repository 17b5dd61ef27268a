"""A vLLM-like publisher on real sockets, with faults on demand."""

import random
import threading
import time

import msgspec
import zmq

END = b"\xff" * 8


def stored(
    hashes: list[int], tokens: list[int], *, parent: int | None = None, block_size: int = 4, **more: object
) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": block_size, "lora_id": None, "medium": "GPU", "lora_name": None} | more


def removed(hashes: list[int], medium: str | None = "GPU") -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}


CLEARED: dict[str, object] = {"type": "AllBlocksCleared"}


def batch(*events: object, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([time.time(), list(events), rank])


class Publisher:
    """Binds PUB and ROUTER; serves replays from a thread of its own, as engines do."""

    def __init__(
        self,
        *,
        ports: tuple[int, int] | None = None,
        topic_in_replay: bool = True,
        buffer: int = 10_000,
        connect: int | None = None,
        topic: bytes = b"",
    ) -> None:
        """`connect`: the port of who listens, in place of one of our own."""
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.SNDHWM, 0)
        for socket in (self._live, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        self._topic = topic
        if connect is not None:
            self._live.connect(f"tcp://127.0.0.1:{connect}")
            self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")
        elif ports is None:
            self.port = self._live.bind_to_random_port("tcp://127.0.0.1")
            self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")
        else:
            self.port, self.replay_port = ports
            self._live.bind(f"tcp://127.0.0.1:{self.port}")
            self._router.bind(f"tcp://127.0.0.1:{self.replay_port}")
        self._topic_in_replay = topic_in_replay
        self._buffer_size = buffer
        self.kept: dict[int, bytes] = {}
        self.sequence = 0
        self.asked: list[int] = []
        self.answer = True
        self.end_marker = True
        self.replay_room: int | None = None
        """Batches of a replay after which some are lost, as without a high-water mark of its own; None: no bound."""
        self._draw = random.Random(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def publish(self, payload: bytes, *, lose: bool = False, keep: bool = True) -> None:
        """Send the next batch; `lose` keeps it off the live socket, `keep` is whether a replay has it."""
        if keep:
            self.kept[self.sequence] = payload
            for old in [seq for seq in self.kept if seq <= self.sequence - self._buffer_size]:
                del self.kept[old]
        if not lose:
            self.send_raw([self._topic, self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1

    def send_raw(self, frames: list[bytes]) -> None:
        self._live.send_multipart(frames)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._live.close()
        self._router.close()
        self._context.term()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            client, _, start = self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if not self.answer:
                continue
            topic = [b""] if self._topic_in_replay else []
            wanted = [item for item in sorted(self.kept.copy().items()) if item[0] >= int.from_bytes(start, "big")]
            for sent, (seq, payload) in enumerate(wanted):
                if self.replay_room is None or sent < self.replay_room or self._draw.random() < 0.7:
                    self._router.send_multipart([client, b"", *topic, seq.to_bytes(8, "big"), payload])
            if self.end_marker:
                self._router.send_multipart([client, b"", *topic, END, b""])
