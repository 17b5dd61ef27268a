"""`--perf`: a short, bounded load through the Gateway; off by default, implied by nothing, and judged by nobody."""

import asyncio
import time
from dataclasses import dataclass

import aiohttp

from epp.readiness.live import requests
from epp.readiness.live.lab import Lab

MOST_SECONDS = 60.0
MOST_PARALLEL = 64
MOST_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """What a load showed. Seconds."""

    requests: int
    failed: int
    seconds: float
    median: float
    p99: float

    def __str__(self) -> str:
        rate = self.requests / self.seconds if self.seconds else 0.0
        return (
            f"perf: {self.requests} requests in {self.seconds:.1f} s ({rate:.1f}/s), {self.failed} failed, "
            f"median {1000 * self.median:.0f} ms, p99 {1000 * self.p99:.0f} ms"
        )


async def load(lab: Lab) -> Load:
    """Chats of four tokens, so many at a time, for so long."""
    took: list[float] = []
    failed = 0
    begun = time.monotonic()
    until = begun + min(lab.demands.perf_seconds, MOST_SECONDS)

    async def one_client() -> None:
        nonlocal failed
        while time.monotonic() < until and len(took) + failed < MOST_REQUESTS:
            started = time.monotonic()
            try:
                answer = await requests.chat(lab, requests.prompt())
            except (aiohttp.ClientError, OSError, TimeoutError):
                failed += 1
                continue
            if answer.status == 200:
                took.append(time.monotonic() - started)
            else:
                failed += 1

    await asyncio.gather(*(one_client() for _ in range(min(lab.demands.perf_parallel, MOST_PARALLEL))))
    took.sort()
    median, p99 = (took[len(took) // 2], took[int(len(took) * 0.99)]) if took else (0.0, 0.0)
    return Load(len(took) + failed, failed, time.monotonic() - begun, median, p99)
