"""`make soak`: many requests through Envoy at mixed modes, one in five clients leaving in the middle.

Prints one JSON line and exits 1 when a body was lost or changed, something stayed reserved, or memory grew beyond
20 B per completed request and 130 B per stream that Envoy reset.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from epp.settings import BodyMode
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, running_picker

from .traffic import Traffic, mirror_worker

PER_REQUEST = 20
PER_RESET = 130
ALLOCATOR_NOISE = 4 * 1024 * 1024
"""Bytes that RSS moves without any leak: arenas and fragments of thousands of requests in flight."""
WARM_UP = 0.2
"""Share of the requests before memory is measured first."""
MODES = (
    (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED),
    (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE),
    (BodyMode.BUFFERED, BodyMode.BUFFERED),
    (BodyMode.STREAMED, BodyMode.STREAMED),
)


@dataclass
class Report:
    """What a soak found."""

    requests: int
    seconds: float
    results: dict[str, int]
    open_streams: int
    buffered_bytes: int
    reservations: int
    resets: int
    """Streams that Envoy reset after the warm-up."""
    grown_bytes: int
    """RSS of the picker since the warm-up."""

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        found = [name for name in self.results if name == "changed" or name.startswith("lost")]
        if self.open_streams or self.buffered_bytes or self.reservations:
            found.append("something stayed")
        measured = self.results.get("complete", 0) * (1 - WARM_UP)
        if self.grown_bytes > ALLOCATOR_NOISE + PER_REQUEST * measured + PER_RESET * self.resets:
            found.append("memory grew")
        return found


def soak(requests: int, settings: dict[str, str] | None = None) -> Report:
    """Run a soak of `requests` requests."""
    return asyncio.run(_soak(requests, settings or {}))


async def _soak(requests: int, settings: dict[str, str]) -> Report:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-soak-")))
        async with mirror_worker() as port:
            given = {"EPP_ENDPOINTS": f"127.0.0.1:{port}", "EPP_KV_EVENTS": "false", **settings}
            picker = stack.enter_context(running_picker(given, folder))
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
            return await _measured(requests, traffic, picker, envoys)


async def _measured(requests: int, traffic: Traffic, picker: Picker, envoys: list[Envoy]) -> Report:
    begin = time.monotonic()
    await traffic.run(round(requests * WARM_UP))
    await _settled(picker)
    before, resets = _rss(picker), _resets(envoys)
    await traffic.run(requests - round(requests * WARM_UP))
    status = await _settled(picker)
    return Report(
        requests=requests,
        seconds=round(time.monotonic() - begin, 1),
        results=dict(traffic.results),
        open_streams=status["exchanges"]["open"],
        buffered_bytes=status["exchanges"]["buffered_bytes"],
        reservations=status["load"]["reservations"],
        resets=_resets(envoys) - resets,
        grown_bytes=_rss(picker) - before,
    )


async def _settled(picker: Picker) -> dict[str, dict[str, int]]:
    """The picker's status once all exchanges are over, or after ten seconds."""
    for _ in range(100):
        status = await asyncio.to_thread(_status, picker)
        if not status["exchanges"]["open"]:
            break
        await asyncio.sleep(0.1)
    return status


def _status(picker: Picker) -> dict[str, dict[str, int]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{picker.admin_port}/status", timeout=10) as response:
        status: dict[str, dict[str, int]] = json.load(response)
    return status


def _rss(picker: Picker) -> int:
    status = Path(f"/proc/{picker.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _resets(envoys: list[Envoy]) -> int:
    names = ("cluster.picker.upstream_rq_tx_reset", "cluster.picker.upstream_rq_rx_reset")
    return sum(value for envoy in envoys for name in names for value in envoy.stats(name).values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--setting", action="append", default=[], metavar="EPP_NAME=VALUE")
    arguments = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in arguments.setting)
    report = soak(arguments.requests, settings)
    print(json.dumps({**asdict(report), "faults": report.faults}))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
