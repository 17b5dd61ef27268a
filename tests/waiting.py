"""How tests wait for what others bring about, and how they get ports: never by a fixed time or number."""

import asyncio
import inspect
import random
import socket
import time
from collections.abc import Awaitable, Callable

SECONDS = 30.0
"""Much longer than anything takes, as a busy machine is no failure."""


async def until(
    holds: Callable[[], bool | Awaitable[bool]], seconds: float = SECONDS, said: Callable[[], object] = str
) -> None:
    """Let the event loop run until `holds`; fails after `seconds` with what `said` says then."""
    deadline = time.monotonic() + seconds
    while True:
        answer = holds()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert time.monotonic() < deadline, f"it never came to hold: {said()}"
        await asyncio.sleep(0.005)


def eventually(holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """The same where no event loop runs in this thread."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Distinct free ports below those that the system gives to clients, so that no waiting client takes one."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]
