"""`make soak`: many requests through Envoy at mixed modes, one in five clients leaving in the middle.

Prints one JSON line and exits 1 when a body was lost or changed, something stayed reserved, or memory grew beyond
20 B per completed request and, for each stream that Envoy reset, 130 B on grpcio and 1 B on http2.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from epp.settings import BodyMode, TransportName
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, running_picker

from .growth import own_bytes, slope
from .traffic import Traffic, mirror_worker

PER_REQUEST = 20
PER_RESET = {TransportName.GRPCIO: 130, TransportName.HTTP2: 1}
WINDOWS = 20
WARM_UP = 8
"""Windows before memory counts: pools, caches and learnt habits fill up."""
NOISE = 1024 * 1024
"""Bytes that an allocator's arenas and fragments may move without any leak."""
MODES = (
    (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED),
    (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE),
    (BodyMode.BUFFERED, BodyMode.BUFFERED),
    (BodyMode.STREAMED, BodyMode.STREAMED),
)


@dataclass(frozen=True, kw_only=True)
class Left:
    """What the picker says that it still holds."""

    open_streams: int
    buffered_bytes: int
    reservations: int
    """Requests that count on a worker, by reservation or estimate."""


@dataclass(kw_only=True)
class Report:
    """What a soak found."""

    transport: TransportName
    requests: int
    seconds: float
    results: dict[str, int]
    left: Left
    completed: int
    """Requests that came to their end in the windows in which memory counts."""
    resets: int
    """Streams that Envoy reset in those windows."""
    memory: list[int]
    """The picker's own bytes before the first window and after each."""

    @property
    def grown(self) -> float:
        """Bytes by which the picker grew in the windows in which memory counts, by their slope."""
        return slope(self.memory[WARM_UP:]) * (WINDOWS - WARM_UP)

    @property
    def allowed(self) -> float:
        """Bytes by which it may grow."""
        return PER_REQUEST * self.completed + PER_RESET[self.transport] * self.resets

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        found = [name for name in self.results if name == "changed" or name.startswith("lost")]
        found += [f"left: {name}" for name, count in asdict(self.left).items() if count]
        if self.grown > self.allowed + NOISE:
            found.append("memory grew")
        return found


def soak(requests: int, transport: TransportName, settings: dict[str, str] | None = None) -> Report:
    """Run a soak of `requests` requests."""
    return asyncio.run(_soak(requests, transport, settings or {}))


async def _soak(requests: int, transport: TransportName, settings: dict[str, str]) -> Report:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-soak-")))
        async with mirror_worker() as port:
            given = {"EPP_ENDPOINTS": f"127.0.0.1:{port}", "EPP_KV_EVENTS": "false", "EPP_TRANSPORT": transport}
            picker = stack.enter_context(running_picker(given | settings, folder))
            envoys = [
                stack.enter_context(
                    running_envoy(
                        EnvoyConfig(
                            picker_port=picker.port,
                            request_body=request,
                            response_body=response,
                            message_timeout_seconds=60,
                        )
                    )
                )
                for request, response in MODES
            ]
            traffic = Traffic([f"http://{envoy.address}/v1/chat/completions" for envoy in envoys])
            return await _measured(requests, transport, traffic, picker, envoys)


async def _measured(
    requests: int, transport: TransportName, traffic: Traffic, picker: Picker, envoys: list[Envoy]
) -> Report:
    begin = time.monotonic()
    memory = [own_bytes(picker.process.pid)]
    completed = resets = 0
    for window in range(WINDOWS):
        if window == WARM_UP:
            completed, resets = traffic.results["complete"], _resets(envoys)
        await traffic.run(requests // WINDOWS)
        await _settled(picker, lambda left: not left.open_streams)
        memory.append(own_bytes(picker.process.pid))
    return Report(
        transport=transport,
        requests=requests,
        seconds=round(time.monotonic() - begin, 1),
        results=dict(traffic.results),
        left=await _settled(picker, lambda left: not any(asdict(left).values())),
        completed=traffic.results["complete"] - completed,
        resets=_resets(envoys) - resets,
        memory=memory,
    )


async def _settled(picker: Picker, wanted: Callable[[Left], bool]) -> Left:
    """What the picker holds once that is as wanted, or after half a minute: estimates expire late."""
    for _ in range(300):
        left = await asyncio.to_thread(_left, picker)
        if wanted(left):
            break
        await asyncio.sleep(0.1)
    return left


def _left(picker: Picker) -> Left:
    with urllib.request.urlopen(f"http://127.0.0.1:{picker.admin_port}/status", timeout=30) as response:
        status = json.load(response)
    exchanges, load = status["exchanges"], status["load"]
    return Left(
        open_streams=exchanges["open"],
        buffered_bytes=exchanges["buffered_bytes"] + (status["carrier"]["buffered_bytes"] or 0),
        reservations=load["reservations"],
    )


def _resets(envoys: list[Envoy]) -> int:
    names = ("cluster.picker.upstream_rq_tx_reset", "cluster.picker.upstream_rq_rx_reset")
    return sum(value for envoy in envoys for name in names for value in envoy.stats(name).values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--transport", type=TransportName, default=TransportName.GRPCIO, choices=list(TransportName))
    parser.add_argument("--setting", action="append", default=[], metavar="EPP_NAME=VALUE")
    arguments = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in arguments.setting)
    report = soak(arguments.requests, arguments.transport, settings)
    figures = {"grown": report.grown, "allowed": report.allowed, "faults": report.faults}
    print(json.dumps({**asdict(report), **figures}))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
