"""The requests of a soak, and the worker that answers them."""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

SIZES = (0, 200, 1000, 1000, 1000, 20_000, 65_536, 220_000)
PIECE = 16_384
LEAVE_EARLY = 0.1
LEAVE_LATE = 0.1
AT_ONCE = 32


async def mirror(request: web.Request) -> web.StreamResponse:
    """The body back, in one piece or as a stream of events with its digest."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    try:
        body = await request.read()
        if "stream" not in request.headers:
            return web.Response(body=body, content_type="application/json")
        await response.prepare(request)
        await _stream(response, body)
    except ConnectionError:
        pass  # the client left, as one in five does
    return response


async def _stream(response: web.StreamResponse, body: bytes) -> None:
    for _ in range(8):
        await response.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
        await asyncio.sleep(0.002)
    await response.write(hashlib.sha256(body).hexdigest().encode())


@asynccontextmanager
async def mirror_worker() -> AsyncIterator[int]:
    """The port of a worker."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", mirror)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@dataclass
class Traffic:
    """A fixed number of requests from many clients at once; what became of them."""

    urls: list[str]
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    results: Counter[str] = field(default_factory=Counter)

    async def run(self, requests: int) -> None:
        """Make the requests."""
        left = iter(range(requests))
        connector = TCPConnector(limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(60)) as session:
            await asyncio.gather(
                *(self._client(session, left, random.Random(self.chance.random())) for _ in range(AT_ONCE))
            )

    async def _client(self, session: ClientSession, left: "range | object", chance: random.Random) -> None:
        for _ in left:  # type: ignore[attr-defined]
            try:
                self.results[await self._one(session, chance)] += 1
            except (ClientError, TimeoutError, OSError) as error:
                self.results[f"lost: {type(error).__name__}"] += 1

    async def _one(self, session: ClientSession, chance: random.Random) -> str:
        body = chance.randbytes(chance.choice(SIZES))
        url, fate = chance.choice(self.urls), chance.random()
        if fate < LEAVE_EARLY:
            return await _leave_early(session, url, body)
        headers = {"stream": "yes"} if chance.random() < 0.5 else {}
        async with session.post(url, data=_pieces(body), headers=headers) as response:
            if response.status != 200:
                return f"lost: status {response.status}"
            if fate < LEAVE_EARLY + LEAVE_LATE:
                await response.content.readany()
                response.close()
                return "left late"
            got = await response.read()
        expected = hashlib.sha256(body).hexdigest().encode()
        whole = got.endswith(expected) and got.count(b"data:") == 8 if headers else got == body
        return "complete" if whole else "changed"


async def _leave_early(session: ClientSession, url: str, body: bytes) -> str:
    """Send a part of a body, then drop the connection."""

    async def part() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2] or b"x"
        await asyncio.sleep(60)

    task = asyncio.ensure_future(session.post(url, data=part()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return "left early"


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, max(len(body), 1), PIECE):
        yield body[at : at + PIECE]
