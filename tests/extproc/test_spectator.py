"""Beside somebody else's picker: nothing is answered, the load follows where requests went, and picks are compared."""

from collections.abc import Iterable

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp._pb.external_processor_pb2 import ProcessingRequest
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.extproc.exchange import ProtocolError
from epp.extproc.rules import ExchangeRules
from epp.extproc.spectator import Spectator
from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt, Request, TokenSource
from epp.scheduling.comparison import Comparison, ComparisonReport
from epp.scheduling.policies import policy_from
from epp.scheduling.scheduler import Scheduler
from epp.settings import Settings

from .world import DESTINATION, Outcomes, Played, request_body, request_headers, response_body, response_headers

ASK = request_body(b"{}", end=True)
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
USAGE = b'data: {"usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 640}}}\n\n'


class Holds:
    """Worker 1 holds most of every prompt."""

    def match(self, prompt: Prompt) -> Match:
        return Match(np.array([0, min(900, len(prompt.tokens))]))


class Reader:
    async def read(self, *, path: str, content_type: str, body: bytes, request_id: str) -> Request:
        ids = np.arange(1000, dtype=np.uint32)
        return Request(id=request_id, prompt=Prompt(tokens=ids, source=TokenSource.TOKENIZER), stream=True)


class Beside:
    def __init__(self) -> None:
        self.now = 100.0
        pool = Pool()
        pool.replace(Endpoint(name=f"w{i}", address=f"10.0.0.{i + 1}", port=8000) for i in range(2))
        self.told: list[int] = []
        self.scheduler = Scheduler(
            pool=pool,
            index=Holds(),
            policy=policy_from(Settings(exploration=0)),
            clock=lambda: self.now,
            picked=lambda column, _prompt: self.told.append(column),
        )
        self.comparison = Comparison(CollectorRegistry())
        self.outcomes = Outcomes()
        self.spectator = Spectator(
            reader=Reader(),
            scheduler=self.scheduler,
            comparison=self.comparison,
            observers=[self.outcomes],
            rules=ExchangeRules(),
            clock=lambda: self.now,
        )

    async def watch(self, *messages: bytes) -> "Slow":
        """Play the messages as a gateway in observability mode does; each takes 0.1 s."""
        stream = Slow(self, [observed(message) for message in messages])
        await self.spectator.serve(stream)
        assert stream.sent == [], "a watcher answers nothing"
        assert int(self.scheduler.load.in_flight.sum()) == 0
        return stream

    @property
    def report(self) -> ComparisonReport:
        return self.comparison.report()


class Slow(Played):
    def __init__(self, world: Beside, messages: Iterable[bytes]) -> None:
        super().__init__(messages)
        self._world = world
        self.loads: list[list[int]] = []

    async def read(self) -> bytes | None:
        self._world.now += 0.1
        self.loads.append(self._world.scheduler.load.in_flight.tolist())
        return await super().read()


def observed(message: bytes) -> bytes:
    request = ProcessingRequest.FromString(message)
    request.observability_mode = True
    return request.SerializeToString()


def asked(destination: str = "10.0.0.1:8000") -> bytes:
    return request_headers(*([(DESTINATION, destination)] if destination else []))


def answer(served: str = "") -> list[bytes]:
    return [
        response_headers("text/event-stream", served=served),
        response_body(TOKEN),
        response_body(USAGE, end=True),
    ]


async def test_a_request_that_went_elsewhere_is_compared_with_our_pick_and_calibrated() -> None:
    world = Beside()
    stream = await world.watch(asked(), ASK, *answer())
    assert [1, 0] in stream.loads, "the load is where the request went"
    assert [0, 1] not in stream.loads
    assert world.told == [0]
    report = world.report
    assert (report.compared, report.same) == (1, 0)
    assert report.served_ttft == pytest.approx(0.105)
    assert report.our_ttft == pytest.approx(0.015)
    assert report.gain == pytest.approx(0.09)
    assert (report.served_cached_tokens, report.our_cached_tokens, report.reported_cached_tokens) == (0, 900, 640)
    assert report.calibration is not None
    assert report.calibration.observed_mean == pytest.approx(0.2)
    assert report.calibration.bias == pytest.approx(0.2 - 0.105)


async def test_the_same_pick_gains_nothing_and_teaches_the_rate() -> None:
    world = Beside()
    for _ in range(40):
        await world.watch(asked("10.0.0.2:8000"), ASK, *answer())
    report = world.report
    assert (report.compared, report.same, report.gain) == (40, 40, 0.0)
    assert report.our_ttft > 0.02, "a prefill of 100 tokens took 0.2 s again and again"
    assert report.verdict.startswith("no difference beyond doubt")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([asked("10.9.9.9:1"), ASK, *answer()], "not_in_pool"),
        ([asked(""), ASK, *answer()], "destination_unknown"),
        ([request_headers((DESTINATION, "10.0.0.1:8000"), ("x-prefiller-host-port", "p:1")), ASK], "disaggregated"),
        ([asked(), ASK, response_headers(status="503", end=True)], "not_answered"),
    ],
)
async def test_what_cannot_be_compared_is_counted_by_reason(messages: list[bytes], reason: str) -> None:
    world = Beside()
    await world.watch(*messages)
    assert world.report.compared == 0
    assert world.report.left_out == {reason: 1}


async def test_who_answered_counts_more_than_who_was_chosen() -> None:
    world = Beside()
    await world.watch(asked("10.0.0.1:8000"), ASK, *answer(served="10.0.0.2:8000"))
    assert (world.report.compared, world.report.same) == (1, 1)
    upstream = ProcessingRequest.FromString(response_headers("text/event-stream"))
    upstream.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.2:8000"})
    await world.watch(asked(""), ASK, upstream.SerializeToString(), response_body(TOKEN, end=True))
    assert (world.report.compared, world.report.same) == (2, 2)


async def test_a_stream_that_breaks_off_anywhere_leaves_no_load() -> None:
    messages = [asked(), ASK, *answer()]
    for length in range(len(messages)):
        await Beside().watch(*messages[:length])


async def test_headers_alone_are_compared_by_load() -> None:
    world = Beside()
    await world.watch(asked(), response_headers(end=True))
    assert world.report.compared == 1
    assert world.report.calibration is None
    assert "not calibrated" in world.report.verdict


async def test_a_gateway_that_waits_for_answers_is_told_what_to_set() -> None:
    world = Beside()
    with pytest.raises(ProtocolError, match="observability_mode"):
        await world.spectator.serve(Played([asked()]))
    with pytest.raises(ProtocolError):
        await world.spectator.serve(Played([b"\xff\xff"]))
