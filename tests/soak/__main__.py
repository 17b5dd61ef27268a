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
from dataclasses import asdict, dataclass, field
from pathlib import Path

from epp.settings import BodyMode, TransportName
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, running_picker

from .growth import own_bytes, slope
from .traffic import Traffic, mirror_worker

PER_REQUEST = 20
PER_RESET = {TransportName.GRPCIO: 130, TransportName.HTTP2: 1}
WINDOWS = 50
WARM_UP = 0.4
"""Share of the windows before memory counts: pools, caches and learnt habits fill up."""
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
    """Requests that count on a worker."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Where the soak stands after a window."""

    completed: int
    """Requests that came to their end."""
    resets: int
    """Streams that Envoy reset."""
    memory: int
    """The picker's own bytes."""


@dataclass(kw_only=True)
class Report:
    """What a soak found."""

    transport: TransportName
    requests: int
    seconds: float
    results: dict[str, int]
    left: Left
    samples: list[Sample]

    @property
    def counted(self) -> list[Sample]:
        """The samples by which memory is judged."""
        return self.samples[round(len(self.samples) * WARM_UP) :]

    @property
    def grown(self) -> float:
        """Bytes by which the picker grew over those samples, by their slope."""
        memory = [sample.memory for sample in self.counted]
        return slope(memory) * (len(memory) - 1)

    @property
    def allowed(self) -> float:
        """Bytes by which it may grow."""
        first, last = self.counted[0], self.counted[-1]
        resets = PER_RESET[self.transport] * (last.resets - first.resets)
        return PER_REQUEST * (last.completed - first.completed) + resets

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        found = [name for name in self.results if name == "changed" or name.startswith("lost")]
        found += [f"left: {name}" for name, count in asdict(self.left).items() if count]
        if self.grown > self.allowed + NOISE:
            found.append("memory grew")
        return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do."""

    requests: int
    transport: TransportName
    seconds: float = float("inf")
    """No new window begins later than this, however many requests are left."""
    settings: dict[str, str] = field(default_factory=dict)


def soak(plan: Plan) -> Report:
    """Run a soak."""
    return asyncio.run(_soak(plan))


async def _soak(plan: Plan) -> Report:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-soak-")))
        async with mirror_worker() as port:
            given = {"EPP_ENDPOINTS": f"127.0.0.1:{port}", "EPP_KV_EVENTS": "false", "EPP_TRANSPORT": plan.transport}
            picker = stack.enter_context(running_picker(given | plan.settings, folder))
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
            return await _measured(plan, traffic, picker, envoys)


async def _measured(plan: Plan, traffic: Traffic, picker: Picker, envoys: list[Envoy]) -> Report:
    begin = time.monotonic()
    samples: list[Sample] = []
    while len(samples) < WINDOWS and time.monotonic() - begin < plan.seconds:
        await traffic.run(plan.requests // WINDOWS)
        await _settled(picker, lambda left: not left.open_streams)
        memory = own_bytes(picker.process.pid)
        samples.append(Sample(completed=traffic.results["complete"], resets=_resets(envoys), memory=memory))
    return Report(
        transport=plan.transport,
        requests=len(samples) * (plan.requests // WINDOWS),
        seconds=round(time.monotonic() - begin, 1),
        results=dict(traffic.results),
        left=await _settled(picker, lambda left: not any(asdict(left).values())),
        samples=samples,
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
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new window later than this")
    parser.add_argument("--setting", action="append", default=[], metavar="EPP_NAME=VALUE")
    arguments = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in arguments.setting)
    plan = Plan(
        requests=arguments.requests, transport=arguments.transport, seconds=arguments.seconds, settings=settings
    )
    report = soak(plan)
    figures = {"grown": report.grown, "allowed": report.allowed, "faults": report.faults}
    print(json.dumps({**asdict(report), **figures}))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
