"""The simulated worker over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from epp.simulate.engine.answers import is_answer
from epp.simulate.engine.cache import BlockCache
from epp.simulate.engine.engine import Engine, EngineConfig
from epp.simulate.engine.events import EventEncoder, EventsConfig, Publisher
from epp.simulate.engine.server import Server
from epp.simulate.engine.sidecar import SidecarConfig, SidecarKind
from epp.simulate.engine.tokens import ModelText

Client = TestClient[web.Request, web.Application]
Start = Callable[..., Awaitable[Client]]
FAST = EngineConfig(blocks=64, block_size=4, prefill_tokens_per_second=1e6, inter_token_seconds=0.0, loras=("poet",))
HELLO = {"messages": [{"role": "user", "content": "the file has one test that fails"}], "max_tokens": 5}


@pytest.fixture
async def start(model_folder: Path) -> AsyncIterator[Start]:
    clients: list[Client] = []

    async def start(config: EngineConfig = FAST, sidecar: SidecarConfig | None = None) -> Client:
        events = EventsConfig()
        publisher = Publisher(events, EventEncoder(events.form, config.block_size, config.rank))
        engine = Engine(config, BlockCache(config.blocks, config.block_size), publisher)
        server = Server(engine, ModelText(model_folder), publisher, events, sidecar)
        client = TestClient(TestServer(server.application(debug=True)))
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


async def test_a_unary_chat_answers_what_follows_from_its_bytes_and_tells_cached_tokens(start: Start) -> None:
    client = await start()
    raw = json.dumps(HELLO).encode()
    cached = []
    for _ in range(2):
        answer = await (await client.post("/v1/chat/completions", data=raw)).json()
        assert is_answer(raw, answer["choices"][0]["message"]["content"])
        assert answer["usage"]["completion_tokens"] == 5
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    prompt = answer["usage"]["prompt_tokens"]
    assert cached == [0, (prompt - 1) // 4 * 4]


async def test_a_stream_says_the_same_as_the_unary_answer(start: Start) -> None:
    client = await start()
    raw = json.dumps({**HELLO, "stream": True, "stream_options": {"include_usage": True}}).encode()
    response = await client.post("/v1/chat/completions", data=raw)
    assert response.content_type == "text/event-stream"
    events = [line.removeprefix("data: ") for line in (await response.text()).splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
    assert is_answer(raw, text)
    assert not is_answer(raw + b" ", text)
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 5


async def test_the_next_turn_finds_the_answer_cached_too(start: Start) -> None:
    client = await start()
    first = await (await client.post("/v1/chat/completions", json={**HELLO, "max_tokens": 12})).json()
    said = first["choices"][0]["message"]
    turn = {"messages": [*HELLO["messages"], said, {"role": "user", "content": "bound"}], "max_tokens": 1}
    second = await (await client.post("/v1/chat/completions", json=turn)).json()
    context = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == context // 4 * 4


async def test_prefill_is_one_queue_whose_time_is_the_uncached_tokens(start: Start) -> None:
    config = EngineConfig(blocks=256, block_size=4, prefill_tokens_per_second=1000, inter_token_seconds=0)
    client = await start(config)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    prompts = [{"prompt": [i] * 200, "max_tokens": 1} for i in range(3)]
    await asyncio.gather(*(client.post("/v1/completions", json=prompt) for prompt in prompts))
    assert loop.time() - begin >= 0.6
    begin = loop.time()
    await client.post("/v1/completions", json=prompts[0])
    assert loop.time() - begin < 0.2


async def test_those_who_wait_are_computed_together_as_far_as_a_step_reaches(start: Start) -> None:
    config = EngineConfig(
        blocks=256, block_size=4, prefill_tokens_per_second=1000, step_tokens=150, inter_token_seconds=0
    )
    client = await start(config)
    ended: list[int] = []

    async def ask(number: int, tokens: int) -> None:
        await client.post("/v1/completions", json={"prompt": [number] * tokens, "max_tokens": 1})
        ended.append(number)

    first = asyncio.create_task(ask(0, 100))
    async with asyncio.timeout(10):
        while b'num_requests_running{engine="0",model_name="simulated"} 1.0' not in await metrics(client):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    others = [asyncio.create_task(ask(number, tokens)) for number, tokens in ((1, 200), (2, 100), (3, 4))]
    await asyncio.gather(first, *others)
    assert ended[:2] == [0, 1]
    assert sorted(ended[2:]) == [2, 3]


async def test_a_client_that_leaves_frees_its_blocks(start: Start) -> None:
    config = EngineConfig(blocks=64, block_size=4, prefill_tokens_per_second=1e6, inter_token_seconds=60)
    client = await start(config)
    async with ClientSession() as session:
        url = str(client.make_url("/v1/completions"))
        response = await session.post(url, json={"prompt": [1] * 40, "max_tokens": 9, "stream": True})
        await response.content.readany()
        assert b'num_requests_running{engine="0",model_name="simulated"} 1.0' in await metrics(client)
        response.close()
    async with asyncio.timeout(10):
        while b'num_requests_running{engine="0",model_name="simulated"} 0.0' not in await metrics(client):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert b'kv_cache_usage_perc{engine="0",model_name="simulated"} 0.0' in await metrics(client)


async def metrics(client: Client) -> bytes:
    return await (await client.get("/metrics")).read()


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/chat/completions", b"{", 400, "truncated"),
        ("/v1/chat/completions", b"{}", 400, "messages"),
        ("/v1/completions", b'{"prompt": ""}', 400, "empty"),
        ("/v1/completions", b'{"prompt": ["a", "b"]}', 400, "several"),
        ("/v1/completions", b'{"prompt": "a", "model": "other"}', 404, "other"),
        ("/v1/completions", json.dumps({"prompt": [1] * 300}).encode(), 400, "300 tokens"),
    ],
)
async def test_mistakes_are_answered_as_vllm_answers_them(
    start: Start, path: str, body: bytes, status: int, text: str
) -> None:
    client = await start()
    response = await client.post(path, data=body)
    assert response.status == status
    error = (await response.json())["error"]
    assert error["code"] == status
    assert text in error["message"]


async def test_adapters_and_salts_have_caches_of_their_own(start: Start) -> None:
    client = await start()
    asked: list[dict[str, object]] = [{}, {"model": "poet"}, {"cache_salt": "s"}, {"model": "poet"}]
    cached = []
    for extra in asked:
        answer = await (await client.post("/v1/completions", json={"prompt": [5] * 9, "max_tokens": 1, **extra})).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 0, 8]


async def test_tokenize_and_debug_cache_tell_the_truth(start: Start) -> None:
    client = await start()
    tokens = (await (await client.post("/tokenize", json={"messages": HELLO["messages"]})).json())["tokens"]
    await client.post("/v1/chat/completions", json={**HELLO, "max_tokens": 1})
    blocks = (await (await client.get("/debug/cache")).json())["blocks"]
    assert [token for block in blocks for token in block["tokens"]] == tokens[: len(tokens) // 4 * 4]
    assert (await client.post("/reset_prefix_cache")).status == 200
    assert (await (await client.get("/debug/cache")).json())["blocks"] == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"x-dynamo-worker-instance-id": "x"}, 400),
        ({"x-dynamo-worker-instance-id": "8"}, 400),
        ({"x-dynamo-worker-instance-id": "7"}, 200),
        ({"X-Worker-Instance-Id": "7"}, 200),
    ],
)
async def test_the_dynamo_sidecar_refuses_a_request_that_names_no_known_worker(
    start: Start, headers: dict[str, str], status: int
) -> None:
    client = await start(sidecar=SidecarConfig(kind=SidecarKind.DYNAMO, instance_id=7))
    response = await client.post("/v1/chat/completions", json=HELLO, headers=headers)
    assert response.status == status
    assert (await client.get("/v1/models")).status == 200


async def test_the_llm_d_sidecar_has_the_prompt_computed_where_the_header_says(start: Start) -> None:
    prefiller = await start()
    decoder = await start(sidecar=SidecarConfig(kind=SidecarKind.LLM_D))
    place = {"x-prefiller-host-port": f"127.0.0.1:{prefiller.port}"}
    raw = json.dumps({**HELLO, "stream": True}).encode()
    response = await decoder.post("/v1/chat/completions", data=raw, headers=place)
    assert response.status == 200
    assert b"[DONE]" in await response.read()
    assert await counted(prefiller, "generation_tokens") == 1
    assert await counted(decoder, "generation_tokens") == 5
    assert await counted(decoder, "prompt_tokens") - await counted(decoder, "prefix_cache_hits") == 1


async def test_the_llm_d_sidecar_prefills_here_without_the_header_and_says_when_it_is_wrong(start: Start) -> None:
    decoder = await start(sidecar=SidecarConfig(kind=SidecarKind.LLM_D))
    assert (await decoder.post("/v1/chat/completions", json=HELLO)).status == 200
    for wrong in ("127.0.0.1:1", "nonsense", ""):
        headers = {"x-prefiller-host-port": wrong}
        assert (await decoder.post("/v1/chat/completions", json=HELLO, headers=headers)).status == 502


@pytest.mark.parametrize(
    ("prefill", "status"),
    [({}, 500), ({"x-dynamo-prefill-instance-id": "5"}, 400), ({"x-prefill-instance-id": "4"}, 200)],
)
async def test_the_dynamo_sidecar_wants_a_known_prefill_worker_where_there_are_any(
    start: Start, prefill: dict[str, str], status: int
) -> None:
    prefiller = await start()
    config = SidecarConfig(kind=SidecarKind.DYNAMO, instance_id=7, prefill_workers={4: f"127.0.0.1:{prefiller.port}"})
    decoder = await start(sidecar=config)
    headers = {"x-dynamo-worker-instance-id": "7", **prefill}
    assert (await decoder.post("/v1/chat/completions", json=HELLO, headers=headers)).status == status
    assert await counted(prefiller, "generation_tokens") == (status == 200)


async def counted(client: Client, name: str) -> float:
    """The value of one of the worker's counters."""
    lines = (await metrics(client)).decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}_total"))
