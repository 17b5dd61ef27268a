"""Who sends the secret gets the decision in a response header; nobody else does, and no worker sees the secret."""

import json

import pytest

from epp._pb.external_processor_pb2 import ProcessingResponse
from epp.scheduling.explain import DecisionRecord
from epp.scheduling.explain_header import ExplainHeader, explain_header_from
from epp.settings import SettingsError, load_settings

from .world import (
    BUFFERED,
    DUPLEX,
    Played,
    World,
    config,
    request_body,
    request_headers,
    response_body,
    response_headers,
)

SECRET = "correct horse battery staple"


async def play(world: World, *headers: tuple[str, str], mode: int = DUPLEX) -> list[ProcessingResponse]:
    stream = Played(
        [
            request_headers(*headers, modes=config(mode, mode)),
            request_body(b"{}", end=True),
            response_headers(),
            response_body(b"{}", end=True),
        ]
    )
    await world.servicer.serve(stream)
    return stream.answers


def told(answers: list[ProcessingResponse]) -> str | None:
    (answer,) = (each for each in answers if each.WhichOneof("response") == "response_headers")
    options = answer.response_headers.response.header_mutation.set_headers
    return next((each.header.raw_value.decode() for each in options if each.header.key == "x-epp-decision"), None)


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_with_the_secret_the_answer_says_why(mode: int) -> None:
    world = World(workers=3, explain_secret=SECRET)
    document = json.loads(told(await play(world, ("x-epp-explain", SECRET), mode=mode)) or "")
    assert document["endpoint"] == "w0"
    assert document["policy"] == "round-robin"
    assert [row["name"] for row in document["candidates"]] == ["w0", "w1", "w2"]
    assert document["candidates"][0].keys() >= {"cached_tokens", "in_flight", "predicted_ttft", "cost"}


@pytest.mark.parametrize("given", [None, "", SECRET[:-1], SECRET + "r", "ungültig"])
async def test_without_it_nothing_is_told(given: str | None) -> None:
    world = World(explain_secret=SECRET)
    headers = [] if given is None else [("x-epp-explain", given)]
    assert told(await play(world, *headers)) is None
    assert told(await play(World(), ("x-epp-explain", SECRET))) is None


async def test_the_secret_never_reaches_a_worker() -> None:
    for world in (World(explain_secret=SECRET), World()):
        (pick, *_rest) = await play(world, ("x-epp-explain", SECRET))
        assert "x-epp-explain" in pick.request_headers.response.header_mutation.remove_headers


def none() -> DecisionRecord | None:
    return None


def test_the_setting_needs_a_secret_of_some_length_and_never_shows_it() -> None:
    for secret in ("", "short"):
        with pytest.raises(SettingsError, match="EPP_EXPLAIN=header: needs EPP_EXPLAIN_SECRET"):
            explain_header_from(load_settings({"EPP_EXPLAIN": "header", "EPP_EXPLAIN_SECRET": secret}), none)
    settings = load_settings({"EPP_EXPLAIN": "header", "EPP_EXPLAIN_SECRET": SECRET})
    assert isinstance(explain_header_from(settings, none), ExplainHeader)
    assert explain_header_from(load_settings({"EPP_EXPLAIN_SECRET": SECRET}), none) is None
    assert SECRET not in str(settings)
    assert SECRET not in str(dict(settings))
