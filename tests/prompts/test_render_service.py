"""The engine renders what cannot be rendered here: asked in time, twice when slow, left alone when broken."""

import asyncio
import json
from time import thread_time

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from epp.prompts.model import WithoutTokensError
from epp.prompts.prompt import Api, Media, TokenSource
from epp.prompts.reader import PromptReader
from epp.prompts.render_service import RenderService, RenderServiceLimits
from epp.prompts.side_process import SideProcess
from epp.settings import Settings, SettingsError
from tests.waiting import until

RENDER = "/v1/chat/completions/render"
BODY = b'{"messages": [], "unknown_field": {"b": 1.50}}'


@pytest.fixture
async def make():
    services = []
    process = SideProcess(30.0)

    def one(*targets, **limits):
        service = RenderService(lambda: targets, RenderServiceLimits(**({"budget_seconds": 30.0} | limits)), process)
        services.append(service)
        return service

    yield one
    for service in services:
        await service.stop()
    process.close()


def answering(document, seen=None):
    async def answer(request):
        if seen is not None:
            seen.append((request.path, await request.read()))
        return web.json_response(document)

    return answer


async def test_the_body_goes_as_it_came_and_media_come_back(serve, make):
    seen = []
    features = {
        "mm_hashes": {"image": ["h2", "h1"], "audio": ["h3"]},
        "mm_placeholders": {
            "image": [{"offset": 9, "length": 2}, {"offset": 3, "length": 2}],
            "audio": [{"offset": 5}],
        },
    }
    service = make(await serve(answering({"token_ids": [1, 2], "features": features, "other": 1}, seen)))
    rendered = await service.tokens(Api.CHAT, memoryview(BODY))
    assert seen == [(RENDER, BODY)]
    assert rendered.tokens.tolist() == [1, 2]
    assert rendered.media == (Media("h1", 3), Media("h3", 5), Media("h2", 9))


async def test_completions_are_answered_with_a_list(serve, make):
    service = make(await serve(answering([{"token_ids": [1]}, {"token_ids": [2]}])))
    assert (await service.tokens(Api.COMPLETIONS, BODY)).tokens.tolist() == [1]


async def test_an_engine_without_render_is_asked_to_tokenize(serve, make):
    paths = []

    async def sglang(request):
        paths.append(request.path)
        if request.path != "/tokenize":
            raise web.HTTPNotFound
        return web.json_response({"tokens": [3, 4], "count": 2, "max_model_len": 10})

    service = make(await serve(sglang))
    for _ in range(2):
        assert (await service.tokens(Api.CHAT, BODY)).tokens.tolist() == [3, 4]
    assert paths == [RENDER, "/tokenize", "/tokenize"]


async def test_a_slow_worker_is_overtaken_by_another(serve, make):
    asked = []

    async def one_is_slow(request):
        asked.append(request.url.port)
        if len(asked) == 1:
            await asyncio.sleep(60)
        return web.json_response({"token_ids": [5]})

    service = make(await serve(one_is_slow), await serve(one_is_slow), hedge_seconds=0.05)
    assert (await service.tokens(Api.CHAT, BODY)).tokens.tolist() == [5]
    assert len(set(asked)) == 2


async def test_nothing_waits_longer_than_the_budget(serve, make):
    async def never(request):
        await asyncio.sleep(60)

    service = make(await serve(never), budget_seconds=0.05)
    with pytest.raises(WithoutTokensError, match="render_failed"):
        await asyncio.wait_for(service.tokens(Api.CHAT, BODY), 10)


async def test_a_broken_worker_rests(serve, make):
    calls = []

    async def broken(request):
        calls.append(1)
        raise web.HTTPInternalServerError

    service = make(await serve(broken), failures=2, rest_seconds=600)
    for _ in range(4):
        with pytest.raises(WithoutTokensError):
            await service.tokens(Api.CHAT, BODY)
    assert len(calls) == 2


async def test_a_worker_that_never_answers_rests_too(serve, make):
    asked = []

    async def never(request):
        asked.append(1)
        await asyncio.sleep(60)

    slow, quick = await serve(never), await serve(answering({"token_ids": [5]}))
    service = make(slow, quick, hedge_seconds=0.02, failures=2, rest_seconds=600)
    for _ in range(8):
        assert (await service.tokens(Api.CHAT, BODY)).tokens.tolist() == [5]
    assert len(asked) == 2
    alone = make(await serve(never), hedge_seconds=0.02, budget_seconds=0.05, failures=1, rest_seconds=600)
    for _ in range(3):
        with pytest.raises(WithoutTokensError, match="render_failed"):
            await alone.tokens(Api.CHAT, BODY)
        await asyncio.sleep(0.01)
    assert len(asked) == 3


async def test_a_worker_that_rested_is_asked_again(serve, make):
    broken = True

    async def answer(request):
        if broken:
            raise web.HTTPInternalServerError
        return web.json_response({"token_ids": [5]})

    service = make(await serve(answer), failures=1, rest_seconds=0.05)
    with pytest.raises(WithoutTokensError):
        await service.tokens(Api.CHAT, BODY)
    broken = False

    async def answers() -> bool:
        try:
            return (await service.tokens(Api.CHAT, BODY)).tokens.tolist() == [5]
        except WithoutTokensError:
            return False

    await until(answers)


async def test_a_refused_request_is_no_fault_of_the_worker(serve, make):
    calls = []

    async def refuses(request):
        calls.append(1)
        raise web.HTTPBadRequest

    service = make(await serve(refuses), failures=1, rest_seconds=600)
    for _ in range(3):
        with pytest.raises(WithoutTokensError):
            await service.tokens(Api.CHAT, BODY)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        5,
        {"token_ids": [-1]},
        {"token_ids": [1 << 40]},
        {"token_ids": "x"},
        {"token_ids": [1], "features": {"mm_hashes": {"image": [None]}, "mm_placeholders": {"image": [{"offset": 0}]}}},
    ],
)
async def test_a_strange_answer_gives_no_tokens(serve, make, document):
    service = make(await serve(answering(document)))
    with pytest.raises(WithoutTokensError, match="render_failed"):
        await service.tokens(Api.CHAT, BODY)


async def test_a_large_answer_is_read_beside_and_costs_the_event_loop_little(serve, make):
    """Processor time of the loop's thread; the engine of this test runs in it too, so its share is measured apart."""
    features = {"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 7}]}}
    ids = list(range(100_000, 1_100_000))
    whole = json.dumps({"token_ids": ids, "features": features}).encode()

    async def answer(request):
        return web.Response(body=whole, content_type="application/json")

    service = make(await serve(answer))
    await service.tokens(Api.CHAT, BODY)  # starts the process beside
    start = thread_time()
    rendered = await service.tokens(Api.CHAT, BODY)
    assert thread_time() - start < 0.1
    assert rendered.tokens.tolist() == ids
    assert rendered.media == (Media("h", 7),)


async def test_a_large_answer_without_ids_gives_no_tokens_and_counts_against_the_worker(serve, make):
    asked = []
    service = make(await serve(answering({"tokens": ["x"] * 100_000}, asked)), failures=1, rest_seconds=600)
    for _ in range(2):
        with pytest.raises(WithoutTokensError, match="render_failed"):
            await service.tokens(Api.CHAT, BODY)
    assert len(asked) == 1


async def test_a_large_body_arrives_whole(serve, make):
    seen = []
    body = json.dumps({"messages": [], "x": "é" * 500_000}).encode()
    service = make(await serve(answering({"tokens": [1]}, seen)))
    await service.tokens(Api.CHAT, memoryview(bytearray(body)))
    assert seen == [(RENDER, body)]


async def test_an_endless_answer_is_cut_off(serve, make):
    service = make(await serve(answering({"token_ids": [1] * 100_000})), most_bytes=10_000)
    with pytest.raises(WithoutTokensError):
        await service.tokens(Api.CHAT, BODY)


async def test_no_worker_at_all(make):
    with pytest.raises(WithoutTokensError):
        await make().tokens(Api.CHAT, BODY)
    with pytest.raises(WithoutTokensError, match="render_unknown_api"):
        await make().tokens(Api.UNKNOWN, BODY)


async def test_the_reader_asks_the_workers_when_it_has_no_tokenizer(serve):
    url = await serve(answering({"token_ids": [1, 2, 3]}))
    settings = Settings(render_url="pool", render_service_budget_ms=30_000)
    reader = PromptReader.from_settings(settings, CollectorRegistry(), workers=lambda: [url])
    body = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
    request = await reader.read(path="/v1/chat/completions", content_type="", body=body, request_id="r")
    await reader.stop()
    assert (request.prompt.tokens.tolist(), request.prompt.source) == ([1, 2, 3], TokenSource.RENDER)
    assert request.prompt.namespace == ""


def test_a_wrong_url_names_the_setting():
    with pytest.raises(SettingsError, match="EPP_RENDER_URL"):
        PromptReader.from_settings(Settings(render_url="10.0.0.1:8000"), CollectorRegistry())
