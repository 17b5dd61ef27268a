"""`epp serve` without a tokenizer, over workers that render: whatever some of them do, picks go on with token ids."""

import asyncio

from aiohttp import web

from tests.prompts.served import Served, ask, encoded, environment, picked
from tests.test_app import serving, status
from tests.waiting import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
REQUESTS = 12


async def test_a_pool_with_a_broken_and_a_silent_worker_still_renders(serve, tmp_path):
    asked = {"broken": 0, "silent": 0, "good": 0}

    async def broken(request):
        asked["broken"] += request.path.endswith("/render")
        raise web.HTTPInternalServerError

    async def silent(request):
        asked["silent"] += request.path.endswith("/render")
        await asyncio.sleep(600)

    async def good(request):
        asked["good"] += request.path.endswith("/render")
        return web.json_response({"token_ids": list(range(40))})

    ports = [int((await serve(worker)).rpartition(":")[2]) for worker in (broken, silent, good)]
    more = {"EPP_RENDER_URL": "pool", "EPP_RENDER_SERVICE_BUDGET_MS": "20000", "EPP_RENDER_HEDGE_MS": "50"}
    environ = environment(tmp_path, ports, **more)
    with serving(environ) as process:
        await asyncio.to_thread(status, environ, process)
        served = Served(environ, tmp_path)

        async def read() -> dict[str, int]:
            return (await asyncio.to_thread(served.prompts))["read"]

        async def rendered() -> bool:
            assert picked(await ask(served, encoded(BODY)))
            return (await read()).get("render", 0) >= REQUESTS

        await until(rendered, 90)
        assert "engines render" in await asyncio.to_thread(served.shown)
    assert asked["good"] >= REQUESTS
    assert asked["broken"] > 0
    assert asked["silent"] > 0
