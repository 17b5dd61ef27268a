"""GET /v1/models: routed to a worker, or answered here where the operator wants it."""

import json

import pytest

from .world import Played, World, config, destination, request_body, request_headers


async def asked(world: World, path: str) -> tuple[int, dict[str, object]]:
    stream = Played([request_headers(path=path, end=True, modes=config())])
    await world.servicer.serve(stream)
    (answer,) = stream.answers
    immediate = answer.immediate_response
    return immediate.status.code, json.loads(immediate.body)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/models?limit=5"])
async def test_the_list_names_every_model_and_loads_no_worker(path: str) -> None:
    world = World(models=["base", "org/chat:v2"])
    status, document = await asked(world, path)
    assert status == 200
    assert document["object"] == "list"
    assert [each["id"] for each in document["data"]] == ["base", "org/chat:v2"]
    assert world.in_flight == 0


async def test_one_model_is_found_by_its_name_or_is_404() -> None:
    world = World(models=["base", "org/chat:v2"])
    for path in ("/v1/models/org/chat:v2", "/v1/models/org%2Fchat%3Av2"):
        status, document = await asked(world, path)
        assert (status, document["id"], document["object"]) == (200, "org/chat:v2", "model")
    status, document = await asked(world, "/v1/models/none")
    assert status == 404
    assert document["error"]["code"] == "unknown_model"


@pytest.mark.parametrize("path", ["/v1/modelsx", "/v1/other", "/health"])
async def test_other_requests_and_other_operators_are_routed(path: str) -> None:
    for world, where in ((World(models=["base"]), path), (World(), "/v1/models")):
        stream = Played([request_headers(path=where, end=True, modes=config())])
        await world.servicer.serve(stream)
        assert destination(stream.answers[0])[0] == "10.0.0.1:8000"


async def test_a_post_to_the_list_is_the_workers_to_refuse() -> None:
    world = World(models=["base"])
    stream = Played([request_headers(path="/v1/models", modes=config()), request_body(b"{}", end=True)])
    await world.servicer.serve(stream)
    assert destination(stream.answers[0])[0] == "10.0.0.1:8000"
