"""The doctor finds each fault of a broken set-up, down to the engine's flag, and says nothing about a sound one."""

import argparse
import asyncio
import json

import pytest
from aiohttp import web

from epp.admin.doctor import command
from epp.admin.doctor.engine_flags import Expected, flag_findings
from epp.admin.doctor.finding import Severity
from epp.admin.doctor.gateway import refusals
from epp.admin.doctor.workers import worker_findings
from epp.endpoints.endpoint import Endpoint
from epp.readiness.snapshot.gateway_objects import ParentsStatus
from tests.endpoints.kube import convert

GOOD = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5600"}
OURS = Expected(block_size=16, events_port=5557, replay_port=5600, kv_events=True)


def flags(config: object = GOOD, *more: str) -> list[str]:
    text = config if isinstance(config, str) else json.dumps(config)
    return ["vllm", "serve", "m", "--enable-prompt-tokens-details", "--kv-events-config", text, *more]


def told(command_line: list[str], expected: Expected = OURS) -> list[str]:
    return [
        f"{finding.severity}: {finding.what} -> {finding.fix}"
        for finding in flag_findings("pod", command_line, expected)
    ]


def test_a_sound_worker_has_no_findings():
    assert told(flags()) == []
    assert (
        told(["sh", "-c", "vllm serve m --enable-prompt-tokens-details --kv-events-config '" + json.dumps(GOOD) + "'"])
        == []
    )
    assert told(["vllm", "--enable-prompt-tokens-details", "--kv-events-config=" + json.dumps(GOOD)]) == []


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [
        (["vllm", "--enable-prompt-tokens-details"], "error: it publishes no KV events -> add --kv-events-config"),
        (flags("{oops"), "error: --kv-events-config is no JSON object"),
        (flags(GOOD | {"enable_kv_cache_events": False}), "error: KV events are not switched on"),
        (flags(GOOD | {"endpoint": "tcp://0.0.0.0:5557"}), "error: endpoint tcp://0.0.0.0:5557 makes vLLM connect"),
        (
            flags(GOOD | {"endpoint": "tcp://*:6000"}),
            "error: endpoint is on port 6000, we look for it on 5557 -> set EPP_EVENTS_PORT=6000",
        ),
        (flags(GOOD | {"replay_endpoint": None}), "warning: it has no replay socket"),
        (flags(GOOD | {"replay_endpoint": "tcp://*:1"}), "error: replay_endpoint is on port 1, we look for it on 5600"),
        (flags(GOOD, "--block-size=64"), "error: its blocks have 64 tokens, ours 16"),
        (flags(GOOD, "--block-size", "64"), "error: its blocks have 64 tokens, ours 16"),
        (flags(GOOD, "--no-enable-prefix-caching"), "error: prefix caching is off"),
        (["vllm", "--kv-events-config", json.dumps(GOOD)], "warning: usage does not tell"),
    ],
)
def test_each_wrong_flag_is_named_with_its_cure(command_line, expected):
    (found,) = told(command_line)
    assert found.startswith(expected)


def test_workers_that_should_connect_to_us_are_told_so():
    bound = Expected(block_size=16, events_port=5557, replay_port=None, kv_events=False, bind_port=5600)
    (found,) = told(flags(), bound)
    assert "endpoint tcp://*:5557 waits for us to connect, but EPP_KV_BIND_PORT=5600 waits for it" in found
    assert 'write "endpoint": "tcp://EPP:5600"' in found
    assert told(flags(GOOD | {"endpoint": "tcp://epp:5600"}), bound) == []


def test_events_are_no_matter_where_they_are_switched_off():
    off = Expected(block_size=16, events_port=None, replay_port=None, kv_events=False)
    assert told(["vllm", "--enable-prompt-tokens-details"], off) == []


def said(*conditions: tuple[str, str, str]) -> list[str]:
    """What the doctor makes of conditions that a gateway wrote: type, status, reason."""
    given = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    parents = [{"parentRef": {"name": "gw"}, "conditions": given}]
    found = convert({"parents": parents}, ParentsStatus).parents
    return [f"{finding.what} -> {finding.fix}" for finding in refusals("pool", found)]


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("InvalidExtensionRef", "make endpointPickerRef name"),
        ("InvalidKind", "switch on the gateway's inference extension"),
        ("RefNotPermitted", "ReferenceGrant"),
        ("SomethingNew", "mend the HTTPRoute, or"),
    ],
)
def test_what_gateways_refuse_is_said_with_a_cure(reason, cure):
    (text,) = said(("Accepted", "True", "Accepted"), ("ResolvedRefs", "False", reason))
    assert text.startswith(f"Gateway gw says ResolvedRefs=False ({reason}): no more is said -> ")
    assert cure in text


def test_what_is_accepted_is_fine():
    assert said(("Accepted", "True", "Accepted"), ("ResolvedRefs", "True", ""), ("Other", "False", "")) == []


@pytest.fixture
async def worker():
    """A worker whose blocks have 32 tokens."""
    page = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="100"} 1\nvllm:num_requests_waiting 0\n'

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=page)

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def test_what_a_worker_shows_over_the_network(worker: int):
    here = Endpoint(name="w", address="127.0.0.1", port=worker, events_port=1)
    found = await worker_findings([here], block_size=16, kv_events=True)
    assert [finding.what.split(":")[0] for finding in found] == [
        "its blocks have 32 tokens, ours 16",
        "nothing publishes KV events on port 1",
        "no replay port is known",
    ]
    sound = Endpoint(name="w", address="127.0.0.1", port=worker, block_size=32)
    assert await worker_findings([sound], block_size=16, kv_events=True) == []
    dead = Endpoint(name="w", address="127.0.0.1", port=1)
    (found,) = await worker_findings([dead], block_size=16, kv_events=True)
    assert "does not accept connections" in found.what


async def doctor(monkeypatch, capfd, **environ: str) -> tuple[int, list[dict]]:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    arguments = argparse.Namespace(url="http://127.0.0.1:1", json=True)
    code = await asyncio.to_thread(command.run, arguments)
    return code, json.loads(capfd.readouterr().out)


async def test_the_command_goes_through_the_whole_set_up(monkeypatch, capfd, worker: int, tmp_path):
    environ = {"EPP_ENDPOINTS": f"127.0.0.1:{worker}", "EPP_TOKENIZER_PATH": str(tmp_path)}
    code, findings = await doctor(monkeypatch, capfd, **environ)
    assert code == 1
    assert [finding["where"] for finding in findings] == [
        "EPP_TOKENIZER_PATH",
        "epp serve",
        f"worker 127.0.0.1:{worker}",
    ]
    assert all(finding["fix"] for finding in findings)


@pytest.mark.parametrize(
    ("environ", "code", "message"),
    [
        ({"EPP_PORT_GRPC": "1"}, 2, "EPP_PORT_GRPC: no such setting"),
        ({}, 1, "none is set"),
        ({"EPP_ENDPOINTS": "127.0.0.1:1"}, 1, "does not accept connections"),
    ],
)
async def test_wrong_settings_are_findings_too(monkeypatch, capfd, environ, code, message):
    got, findings = await doctor(monkeypatch, capfd, **environ)
    assert got == code
    assert any(message in finding["what"] for finding in findings)
    assert Severity.ERROR in {finding["severity"] for finding in findings}


async def test_the_text_names_the_cure(monkeypatch, capsys):
    monkeypatch.setenv("EPP_ENDPOINTS", "127.0.0.1:1")
    assert await asyncio.to_thread(command.run, argparse.Namespace(url="http://127.0.0.1:1", json=False)) == 1
    out = capsys.readouterr().out
    assert "error" in out
    assert "give --url" in out
