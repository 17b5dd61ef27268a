"""The path of a request, with a real scheduler and a stream in memory."""

import asyncio
import json
import random
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from epp._pb.external_processor_pb2 import ProcessingResponse
from epp.endpoints.endpoint import HostPort
from epp.extproc.rules import ExchangeRules
from epp.prompts.prompt import Request
from epp.scheduling.outcome import Ending, Outcome
from epp.scheduling.predicted_ttft import PredictedTtft
from epp.scheduling.scheduler import Pick, Scheduler

from .world import (
    BUFFERED_PARTIAL,
    NONE,
    Played,
    World,
    config,
    destination,
    kinds,
    request_body,
    request_headers,
    response_body,
    response_headers,
)

ASK = [request_headers(("x-request-id", "r1"), modes=config()), request_body(b'{"model": "m"}', end=True)]
ANSWER = [response_headers(), response_body(b"{}", end=True)]


async def play(world: World, *messages: bytes, breaks: bool = False) -> list[ProcessingResponse]:
    stream = Played(messages, breaks=breaks)
    await world.servicer.serve(stream)
    return stream.answers


def refused(answers: list[ProcessingResponse]) -> tuple[int, dict[str, object], dict[str, str]]:
    (answer,) = answers
    immediate = answer.immediate_response
    headers = {option.header.key: option.header.raw_value.decode() for option in immediate.headers.set_headers}
    return immediate.status.code, json.loads(immediate.body), headers


def counted(world: World, name: str, **labels: str) -> float:
    return world.registry.get_sample_value(name, labels) or 0.0


async def test_the_reader_gets_the_path_and_the_whole_body() -> None:
    world = World()
    await play(world, ASK[0], request_body(b"{"), request_body(b"}", end=True), *ANSWER)
    assert world.reader.seen == [("/v1/chat/completions", b"{}")]


async def test_prompts_are_read_only_for_a_policy_that_looks_at_them() -> None:
    blind, seeing = World(), World(policy=PredictedTtft(random.Random(1)))
    for world in (blind, seeing):
        await play(world, *ASK, *ANSWER)
    assert (blind.reader.wanted, seeing.reader.wanted) == ([False], [True])


async def test_the_time_of_every_pick_is_told() -> None:
    world = World()
    await play(world, *ASK, *ANSWER)
    assert counted(world, "epp_pick_seconds_count") == 1


# --- Refusals


async def test_no_endpoint_is_503_in_the_form_of_openai() -> None:
    code, body, headers = refused(await play(World(workers=0), *ASK))
    assert code == 503
    assert body["error"] == {
        "message": "no ready endpoint in the pool",
        "type": "server_error",
        "param": None,
        "code": "no_endpoint",
        "request_id": "r1",
    }
    assert headers == {
        "content-type": "application/json",
        "retry-after": "1",
        "x-epp-refused-reason": "no_endpoint",
    }


async def test_messages_clients_get_the_form_of_anthropic() -> None:
    world = World(workers=0)
    _, body, _ = refused(await play(world, request_headers(path="/v1/messages", end=True)))
    assert body["type"] == "error"
    assert body["error"] == {"type": "overloaded_error", "message": "no ready endpoint in the pool"}


async def test_grpc_clients_get_a_grpc_status() -> None:
    world = World(workers=0)
    (answer,) = await play(world, request_headers(("content-type", "application/grpc"), end=True))
    assert answer.immediate_response.grpc_status.status == 14
    assert answer.immediate_response.body == b"no ready endpoint in the pool"


@pytest.mark.parametrize("subset", [[], [""], ["10.9.9.9:1"], "10.0.0.1:9999"])
async def test_a_subset_without_a_ready_endpoint_is_503(subset: list[str] | str) -> None:
    assert refused(await play(World(), request_headers(end=True, subset=subset)))[0] == 503


@pytest.mark.parametrize("subset", [["10.0.0.2:8000"], "10.0.0.2", ["nobody", "10.0.0.2"]])
async def test_a_subset_is_obeyed(subset: list[str] | str) -> None:
    world = World(workers=3)
    for _ in range(4):
        answers = await play(world, request_headers(end=True, subset=subset))
        assert destination(answers[0])[0] == "10.0.0.2:8000"


async def test_a_large_body_is_413_only_when_asked_for() -> None:
    rules = ExchangeRules(max_body_bytes=4, reject_large_bodies=True)
    code, body, _ = refused(await play(World(rules=rules), *ASK))
    assert (code, body["error"]["type"]) == (413, "invalid_request_error")
    announced = request_headers(("content-length", "5"), modes=config(NONE))
    assert refused(await play(World(rules=rules), announced))[0] == 413
    lenient = World(rules=ExchangeRules(max_body_bytes=4))
    assert kinds(await play(lenient, *ASK)) == ["request_headers", "request_body"]
    assert counted(lenient, "epp_exchange_oddities_total", what="truncated") == 1


async def test_a_bad_body_is_400_with_its_place_only_when_asked_for() -> None:
    strict = World(rules=ExchangeRules(reject_bad_requests=True))
    strict.reader.problem = "Expected `str`, got `int` - at `$.messages[1].role`"
    code, body, _ = refused(await play(strict, *ASK))
    assert (code, body["error"]["type"]) == (400, "invalid_request_error")
    assert "$.messages[1].role" in body["error"]["message"]
    assert strict.in_flight == 0
    cut_off = World(rules=ExchangeRules(reject_bad_requests=True, max_body_bytes=4))
    lenient = World()
    for world in (cut_off, lenient):
        world.reader.problem = strict.reader.problem
        assert kinds(await play(world, *ASK)) == ["request_headers", "request_body"]


@pytest.mark.parametrize(("end", "code"), [(True, 400), (False, 0)])
async def test_a_body_that_the_gateway_cut_off_is_no_bad_one(end: bool, code: int) -> None:
    strict = World(rules=ExchangeRules(reject_bad_requests=True))
    strict.reader.problem = "Input data was truncated"
    cut = [request_headers(modes=config(BUFFERED_PARTIAL)), request_body(b'{"messages": [', end=end)]
    assert (await play(strict, *cut))[1].immediate_response.status.code == code


async def test_too_many_streams_are_503_and_the_open_ones_go_on() -> None:
    world = World(rules=ExchangeRules(max_streams=1))
    first = asyncio.create_task(world.servicer.serve(Played(ASK, silent=True)))
    await asyncio.sleep(0)
    code, body, _ = refused(await play(world, *ASK))
    assert (code, body["error"]["code"]) == (503, "overloaded")
    assert world.in_flight == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert kinds(await play(world, *ASK)) == ["request_headers", "request_body"]


# --- Faults of ours


class SlowReader:
    async def read(self, *, path: str, content_type: str, body: bytes, request_id: str, tokens: bool = True) -> Request:
        await asyncio.sleep(60)
        raise AssertionError


class BrokenReader:
    async def read(self, *, path: str, content_type: str, body: bytes, request_id: str, tokens: bool = True) -> Request:
        raise MemoryError


async def test_a_request_that_takes_too_long_to_understand_is_routed_by_load() -> None:
    world = World(rules=ExchangeRules(pick_timeout_seconds=0.01))
    world.servicer._reader = SlowReader()
    assert destination((await play(world, *ASK))[0])[0]
    assert counted(world, "epp_exchange_oddities_total", what="late") == 1


async def test_a_broken_reader_loses_no_request() -> None:
    world = World()
    world.servicer._reader = BrokenReader()
    assert destination((await play(world, *ASK))[0])[0]
    assert counted(world, "epp_exchange_oddities_total", what="internal") == 1


@dataclass
class BrokenScheduler:
    """Fails a number of times, then works."""

    real: Scheduler
    failures: list[BaseException] = field(default_factory=list)

    def pick(
        self, request: Request, *, subset: Collection[str] | None, avoid: Collection[HostPort], **more: object
    ) -> Pick:
        if self.failures:
            raise self.failures.pop()
        return self.real.pick(request, subset=subset, avoid=avoid)


@pytest.mark.parametrize("error", [ValueError(), KeyError("x"), MemoryError()])
async def test_a_pick_that_fails_is_tried_without_the_prompt_and_then_answered(error: Exception) -> None:
    world = World()
    world.servicer._scheduler = BrokenScheduler(world.scheduler, [error])
    assert destination((await play(world, *ASK))[0])[0]
    world.servicer._scheduler = BrokenScheduler(world.scheduler, [error, error])
    code, body, _ = refused(await play(world, *ASK))
    assert (code, body["error"]["code"]) == (500, "internal")
    assert world.in_flight == 0


class BrokenObserver:
    def ended(self, outcome: Outcome) -> None:
        raise ValueError


async def test_a_broken_observer_hides_nothing_from_the_others() -> None:
    world = World()
    world.servicer._observers = (BrokenObserver(), world.outcomes)
    await play(world, *ASK, *ANSWER)
    assert len(world.outcomes.told) == 1


# --- Retries and the endpoint that served


@pytest.mark.parametrize("status", ["503", "500", None])
async def test_a_retry_avoids_the_endpoint_that_failed(status: str | None) -> None:
    world = World(workers=2)
    failure = [response_headers(status=status, end=True)] if status else []
    first = destination((await play(world, *ASK, *failure))[0])[0]
    world.scheduler.pick(Request()).reservation.release()  # the turn would come back to the first one
    second = destination((await play(world, *ASK, *ANSWER))[0])[0]
    assert {first, second} == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert counted(world, "epp_exchange_oddities_total", what="retried") == 1


async def test_after_every_endpoint_failed_one_of_them_is_picked_all_the_same() -> None:
    world = World(workers=2)
    for _ in range(3):
        answers = await play(world, *ASK, response_headers(status="503", end=True))
        assert destination(answers[0])[0]


async def test_a_good_answer_is_no_reason_to_avoid_anyone() -> None:
    world = World(workers=2)
    await play(world, *ASK, *ANSWER)
    await play(world, *ASK, *ANSWER)
    assert counted(world, "epp_exchange_oddities_total", what="retried") == 0


async def test_the_load_moves_to_the_endpoint_that_serves() -> None:
    world = World(workers=2)
    stream = Played([*ASK, response_headers(served="10.0.0.2:8000")], silent=True)
    task = asyncio.create_task(world.servicer.serve(stream))
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.scheduler.load.in_flight.tolist() == [0, 1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.in_flight == 0
    assert world.outcomes.told[0].served == "10.0.0.2:8000"
    assert counted(world, "epp_exchange_oddities_total", what="served_elsewhere") == 1


async def test_a_served_endpoint_outside_the_pool_changes_no_load() -> None:
    world = World(workers=1)
    await play(world, *ASK, response_headers(served="10.7.7.7:1"), response_body(b"", end=True))
    assert world.in_flight == 0


# --- Outcomes


async def test_a_streamed_answer_teaches_its_time_to_first_token() -> None:
    world = World()
    event = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
    await play(world, *ASK, response_headers("text/event-stream"), response_body(event), response_body(b"", end=True))
    outcome = world.outcomes.told[0]
    assert outcome.streamed
    assert outcome.time_to_first_token is not None
    assert outcome.ending is Ending.COMPLETE


async def test_a_plain_answer_teaches_none() -> None:
    world = World()
    await play(world, *ASK, *ANSWER)
    assert world.outcomes.told[0].time_to_first_token is None


@pytest.mark.parametrize(
    ("messages", "ending"),
    [
        ([], Ending.ABORTED),
        (ASK[:1], Ending.ABORTED),
        (ASK, Ending.ABORTED),
        ([*ASK, response_headers()], Ending.ABORTED),
        ([*ASK, *ANSWER], Ending.COMPLETE),
    ],
)
async def test_how_an_exchange_ended(messages: list[bytes], ending: Ending) -> None:
    world = World()
    await play(world, *messages)
    assert [outcome.ending for outcome in world.outcomes.told] == [ending]
    assert counted(world, "epp_exchanges_total", ending=ending.value) == 1


# --- The hooks of the Gateway's conformance suite


async def test_the_test_headers_steer_only_with_the_hooks_on() -> None:
    steered = request_headers(("test-epp-endpoint-selection", "10.0.0.3, 10.9.9.9"), end=True)
    closed = World(workers=3)
    assert destination((await play(closed, steered))[0])[0] == "10.0.0.1:8000"
    world = World(workers=3, rules=ExchangeRules(conformance_hooks=True))
    for _ in range(2):
        answers = await play(world, steered, response_headers(served="10.0.0.3:8000", end=True))
        assert destination(answers[0])[0] == "10.0.0.3:8000"
    asked = {o.header.key: o.header.raw_value for o in answers[0].request_headers.response.header_mutation.set_headers}
    told = {o.header.key: o.header.raw_value for o in answers[1].response_headers.response.header_mutation.set_headers}
    assert asked["x-echo-set-header"] == b"x-conformance-test-served-endpoint:10.0.0.3:8000"
    assert told["x-conformance-test-served-endpoint"] == b"10.0.0.3:8000"
    foreign = request_headers(("test-epp-endpoint-selection", "10.9.9.9"), end=True)
    assert refused(await play(world, foreign))[0] == 503
