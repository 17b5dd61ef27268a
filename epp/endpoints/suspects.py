"""Endpoints that look dead before the cluster says so.

A node that dies sends no event for some 40 seconds. So the first failure that a worker may have caused takes it out
of the picks at once and has it probed: an answer, whatever it says, brings it straight back; silence keeps it out
until one comes. A connection alone proves little: the kernel accepts it for a process that hangs. Cache and load of a
suspect are kept, and when nothing else is left it is picked all the same.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.endpoints.pool import Pool

_log = structlog.get_logger()

Probe = Callable[[Endpoint], Awaitable[bool]]
"""Whether the endpoint answers."""

PROBE_SECONDS = 1.0
CLOSED_PAUSE = 0.1
"""Seconds in which the kernel closes all sockets of a killed process."""
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectsStatus:
    """The section of `/status` about endpoints that look dead."""

    suspended: tuple[str, ...]


class Suspects:
    """Which endpoints are not to be picked for now, although discovery lists them."""

    def __init__(
        self,
        pool: Pool,
        registry: CollectorRegistry,
        *,
        probe: Probe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._probe = probe or answers
        self._clock = clock
        self._out: dict[HostPort, asyncio.Task[None]] = {}
        self._answered: dict[HostPort, tuple[float, Endpoint]] = {}
        self._verdicts = Counter(
            "epp_suspicions",
            "Endpoints that were probed after a failure, by what the probe said.",
            ["verdict"],
            registry=registry,
        )
        Gauge(
            "epp_endpoints_suspended", "Endpoints kept out of the picks because they look dead.", registry=registry
        ).set_function(lambda: len(self._out))
        pool.on_leave(self._forget)

    @property
    def places(self) -> frozenset[HostPort]:
        """The endpoints to avoid now."""
        return frozenset(self._out)

    def suspect(self, endpoint: Endpoint) -> None:
        """Something failed that a dead worker would explain."""
        place = endpoint.host_port
        self._answered.pop(place, None)
        if place not in self._out and self._present(endpoint):
            self._out[place] = asyncio.create_task(self._examine(endpoint), name=f"examine {place}")

    def answered(self, endpoint: Endpoint) -> None:
        """The endpoint answered a request just now."""
        if endpoint.host_port in self._answered or self._present(endpoint):
            self._answered[endpoint.host_port] = (self._clock(), endpoint)

    def status(self) -> SuspectsStatus:
        """The section for `/status`."""
        return SuspectsStatus(suspended=tuple(sorted(self._out)))

    async def stop(self) -> None:
        """Probe no longer."""
        tasks = list(self._out.values())
        self._out.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _examine(self, endpoint: Endpoint) -> None:
        """Keep the endpoint out until a probe says that it lives, or that probes say nothing here."""
        place, pause, said = endpoint.host_port, FIRST_PAUSE, False
        try:
            while not await self._probe(endpoint):
                if not said and await self._probes_are_blind(endpoint):
                    self._verdicts.labels("unknown").inc()
                    await asyncio.sleep(LONGEST_PAUSE)
                    return
                if not said:
                    said = True
                    self._verdicts.labels("dead").inc()
                    _log.warning("endpoint does not answer; not picked until it does", endpoint=endpoint.name, at=place)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            self._verdicts.labels("alive").inc()
            if said:
                _log.info("endpoint answers again", endpoint=endpoint.name, at=place)
        finally:
            if self._out.get(place) is asyncio.current_task():
                del self._out[place]

    async def _probes_are_blind(self, endpoint: Endpoint) -> bool:
        """Whether even a worker that just answered cannot be reached from here, as behind a NetworkPolicy."""
        others = [known for place, known in self._answered.items() if place not in self._out]
        if not others:
            return False
        _, control = max(others, key=lambda known: known[0])
        return control.address != endpoint.address and not await self._probe(control)

    def _present(self, endpoint: Endpoint) -> bool:
        snapshot = self._pool.snapshot()
        position = snapshot.position.get(endpoint.host_port)
        return position is not None and snapshot.endpoints[position].incarnation == endpoint.incarnation

    def _forget(self, _column: int, endpoint: Endpoint) -> None:
        self._answered.pop(endpoint.host_port, None)
        if task := self._out.pop(endpoint.host_port, None):
            task.cancel()


async def answers(endpoint: Endpoint) -> bool:
    """Whether the endpoint sends anything or closes, within PROBE_SECONDS, when asked for its health.

    Any process that runs reacts, whatever protocol it speaks: with a refusal, a TLS alert, HTTP/2 settings. One that is
    just being killed closes too, so who closes without a word must do it twice.
    """
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            if await _says_something(endpoint):
                return True
            await asyncio.sleep(CLOSED_PAUSE)
            await _says_something(endpoint)
    except (OSError, TimeoutError):
        return False
    return True


async def _says_something(endpoint: Endpoint) -> bool:
    """Whether bytes come; False when the connection is closed without any. Raises OSError if nobody accepts it."""
    request = f"GET /health HTTP/1.1\r\nHost: {endpoint.host_port}\r\nConnection: close\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port)
    try:
        writer.write(request)
        return bool(await reader.read(1))
    except ConnectionError:
        return False  # it was accepted, and somebody closed it
    finally:
        writer.transport.abort()
