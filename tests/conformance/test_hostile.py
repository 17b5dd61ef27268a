"""A target that means harm costs the kit bounded time and memory, and cannot write to the user's terminal."""

import asyncio
import io
import json
import xml.etree.ElementTree as ElementTree
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from rich.console import Console

from epp._pb.external_processor_pb2 import CommonResponse, HeadersResponse, ProcessingResponse
from epp.conformance.check import Result
from epp.conformance.checks import ALL
from epp.conformance.report.ctrf import ctrf
from epp.conformance.report.junit import junit
from epp.conformance.report.results import report
from epp.conformance.report.table import show
from epp.conformance.run import Plan, clean, run_checks
from epp.conformance.stream import Limits
from epp.conformance.verdict import Verdict

from .correct import SERVICE

CHECK = next(check for check in ALL if check.name == "pick.header-only")
ANSWER = ProcessingResponse(response_headers=HeadersResponse(response=CommonResponse(status=1))).SerializeToString()
EVIL = "\x1b]0;owned\x07[bold]<![CDATA[&\x00\u202e"


async def floods(context):
    while True:
        await context.write(ANSWER)


async def drips(context):
    while True:
        await context.write(ANSWER)
        await asyncio.sleep(0.1)


async def says_nonsense(context):
    await context.write(b"\xff\xff\xff")


async def says_too_much(context):
    await context.write(b"x" * 300_000)


async def says_nothing_known(context):
    await context.write(ProcessingResponse().SerializeToString())


async def never_answers(context):
    await asyncio.Event().wait()


async def writes_to_terminals(context):
    await context.abort(grpc.StatusCode.INTERNAL, EVIL)


TARGETS = {
    floods: "flooded: over 500 answers or 100000 bytes",
    drips: "not done after 2 s",
    says_nonsense: "bytes that are no ProcessingResponse",
    says_too_much: "RESOURCE_EXHAUSTED",
    says_nothing_known: "after none",
    never_answers: "no answer in time",
    writes_to_terminals: "INTERNAL",
}


@asynccontextmanager
async def target(behaviour):
    async def process(_messages, context):
        await behaviour(context)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def result_of(behaviour, check=CHECK) -> Result:
    limits = Limits(seconds=1, check_seconds=2, answers=500, bytes=100_000, message_bytes=200_000)
    async with target(behaviour) as port:
        (result,) = await run_checks(Plan(target=("127.0.0.1", port), limits=limits), [check])
    return result


@pytest.mark.parametrize("behaviour", TARGETS, ids=lambda behaviour: behaviour.__name__)
async def test_it_fails_within_bounds(behaviour):
    result = await asyncio.wait_for(result_of(behaviour), 30)
    assert result.verdict is Verdict.FAILED
    assert TARGETS[behaviour] in result.seen


async def test_one_that_takes_no_bytes_does_not_block_the_kit():
    large = next(check for check in ALL if check.name == "connection.large-message")
    result = await asyncio.wait_for(result_of(never_answers, large), 30)
    assert result.verdict is Verdict.FAILED


def test_what_a_target_says_is_shown_as_plain_text():
    result = Result(check=CHECK, verdict=Verdict.FAILED, seen=clean(EVIL))
    screen = io.StringIO()
    show("epp:9002", [result], Console(file=screen, width=200, force_terminal=False))
    assert "\x1b" not in screen.getvalue()
    assert "\u202e" not in screen.getvalue()
    assert "[bold]<![CDATA[&" in screen.getvalue()
    failure = ElementTree.fromstring(junit(report("epp:9002", [result]))).find(".//failure")
    assert failure is not None
    assert failure.get("message") == result.seen
    assert json.loads(ctrf(report("epp:9002", [result])))["results"]["tests"][0]["message"] == result.seen


def test_long_texts_are_cut():
    assert len(clean("\x00" * 100_000)) < 500
