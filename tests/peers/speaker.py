"""A process that shares load as `epp serve` does, without anything else; it obeys lines of JSON and answers each.

`python -m tests.peers.speaker '{"EPP_PEERS": ...}' VERSION`: an older version speaks by its own kept code.
"""

import asyncio
import json
import random
import sys
import time
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

import epp.peers.group as group_module
from epp.endpoints.pool import Pool
from epp.peers.addresses import Processes
from epp.peers.sharing import LoadSharing
from epp.peers.wire import VERSION, Message, WireError
from epp.scheduling.load import Load, Reservation
from epp.settings import load_settings
from epp.telemetry.logs import configure_logs
from tests.data.peers import wire_v2
from tests.peers.replicas import endpoint, work


class Speaker:
    """Load on two workers, shared with the peers that the settings name."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._pool = Pool()
        self._load = Load(time.monotonic)
        self._pool.on_join(self._load.join)
        self._pool.on_leave(self._load.leave)
        sharing = LoadSharing.from_settings(
            load_settings(settings), self._load, self._pool, Processes(), CollectorRegistry()
        )
        assert sharing is not None
        self.sharing = sharing
        self._pool.replace(endpoint(i) for i in range(2))
        self._own: list[Reservation] = []
        self._draw = random.Random(7)
        self._tasks: list[asyncio.Task[None]] = []

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; the answer says how things stand."""
        for _ in range(command.get("reserve", 0)):
            self._own.append(self._load.reserve(command.get("at", 0), work(seconds=60.0)))
        for _ in range(command.get("release", 0)):
            self._own.pop(0).release()
        if "lose" in command:
            self._lose(command["lose"])
        if "block" in command:
            self._tasks.append(asyncio.create_task(self._blocked(*command["block"])))
        if "churn" in command:
            self._tasks.append(asyncio.create_task(self._churn(command["churn"])))
        if command.get("rest"):
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()
        return {"in_flight": self._load.in_flight.tolist(), "own": len(self._own), **self._status()}

    def _status(self) -> dict[str, Any]:
        status = self.sharing.status()
        peers = [msgspec.to_builtins(peer) for peer in status.peers]
        return {"problem": status.problem, "vanished": status.vanished, "bad": status.bad, "peers": peers}

    def _lose(self, share: float) -> None:
        group, receive = self.sharing.group, type(self.sharing.group).receive

        def received(link: str, data: bytes, now: float) -> int | None:
            return None if self._draw.random() < share else receive(group, link, data, now)

        group.receive = received  # type: ignore[method-assign]

    async def _blocked(self, busy: float, pause: float) -> None:
        """The event loop is busy with something else for most of the time."""
        while True:
            time.sleep(busy)  # noqa: ASYNC251 - that is the point
            await asyncio.sleep(pause)

    async def _churn(self, per_second: float) -> None:
        while True:
            kept = self._load.reserve(self._draw.randrange(2), work(seconds=60.0))
            try:
                await asyncio.sleep(1 / per_second)
                kept.first_token()
                kept.progress(10)
            finally:
                kept.release()


def speak_version_2() -> None:
    """Write and read by the code that version 2 had."""

    def encode(message: Message) -> bytes:
        known = [getattr(message, name) for name in wire_v2.Message.__struct_fields__[1:]]
        return wire_v2.encode(wire_v2.Message(wire_v2.VERSION, *known))

    def decode(data: bytes) -> Message:
        try:
            read = wire_v2.decode(data)
        except wire_v2.WireError as error:
            raise WireError(str(error)) from None
        return Message(*(getattr(read, name) for name in wire_v2.Message.__struct_fields__))

    group_module.encode, group_module.decode = encode, decode
    group_module.__version__ = "0.0.1"


async def main(settings: dict[str, str], version: int) -> None:
    """Until standard input ends."""
    if version != VERSION:
        speak_version_2()
    speaker = Speaker(settings)
    await speaker.sharing.start()
    commands: asyncio.Queue[bytes] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(0, lambda: commands.put_nowait(sys.stdin.buffer.readline()))
    while line := await commands.get():
        sys.stdout.write(json.dumps(speaker.obey(json.loads(line))) + "\n")
        sys.stdout.flush()
    await speaker.sharing.stop()


if __name__ == "__main__":
    configure_logs("error")
    asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[2])))
