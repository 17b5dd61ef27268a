"""A worker whose cache and events are vLLM's.

`python -m tests.engines.vllm_worker ROOT EVENTS_PORT REPLAY_PORT BLOCKS BLOCK_SIZE`.

POST /v1/completions takes token ids as the prompt; `usage` tells what the real KVCacheManager hit. Prompts are computed
one at a time, first come, first served; answers grow side by side. GET /published is how many batches went out. The
first line on stdout names the port.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.engines.vllm_engine import VllmEngine

LORAS = ("sql", "law")
_TOKEN_SECONDS = 0.001


class VllmWorker:
    """Drives one engine as its scheduler would."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._room = asyncio.Condition()
        self.published = 0
        self.preempted = 0

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/published", self._say_published)
        return app

    async def _complete(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        lora = body["model"] if body["model"] in LORAS else None
        async with self._turn:
            run, cached = await self._until_room(
                lambda: self._engine.admit(body["prompt"], lora=lora, salt=body.get("cache_salt"))
            )
            self._publish()
        async with self._ending(run):
            for _ in range(body["max_tokens"]):
                await self._grow(run)
                await asyncio.sleep(_TOKEN_SECONDS)
        prompt = len(body["prompt"])
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        usage |= {"total_tokens": prompt + body["max_tokens"], "prompt_tokens_details": {"cached_tokens": cached}}
        choice = {"index": 0, "text": "x", "finish_reason": "length"}
        return web.json_response({"object": "text_completion", "choices": [choice], "usage": usage})

    async def _say_published(self, _request: web.Request) -> web.Response:
        return web.json_response({"published": self.published, "preempted": self.preempted})

    async def _grow(self, run: Any) -> None:
        """One token more; who was preempted is computed again first."""
        self._engine.decode(run, 1)
        self._publish()
        if run.request_id not in self._engine.running:
            self.preempted += 1
            async with self._turn:
                await self._until_room(lambda: self._engine.schedule(run))
                self._publish()

    async def _until_room(self, attempt: Any) -> Any:
        async with self._room:
            while (result := attempt()) is None:
                await self._room.wait()
            return result

    @contextlib.asynccontextmanager
    async def _ending(self, run: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._engine.finish(run)
            self._publish()
            async with self._room:
                self._room.notify_all()

    def _publish(self) -> None:
        self.published += self._engine.step() is not None


async def main(root: Path, ports: tuple[int, int], blocks: int, block_size: int) -> None:
    """Serve until ended."""
    worker = VllmWorker(VllmEngine(root, blocks=blocks, block_size=block_size, ports=ports))
    runner = web.AppRunner(worker.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    root, events, replay, blocks, block_size = sys.argv[1:]
    asyncio.run(main(Path(root), (int(events), int(replay)), int(blocks), int(block_size)))
