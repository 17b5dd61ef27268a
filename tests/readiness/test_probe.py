"""`--probe` over real sockets: a picker or worker with one fault is named by its check; a good one raises no alarm."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from aiohttp import web

from epp.readiness.live.ask import LIVE
from epp.readiness.rule import Mode
from tests.conformance import broken_bodies, broken_picks
from tests.conformance.correct import ENDPOINTS, Fault, serving
from tests.readiness import test_gateways, variants
from tests.readiness.live import ADDRESSES, Judged, placed, validate_beside
from tests.readiness.world import World
from tests.waiting import free_port

MODELS = {"data": [{"id": "llama"}]}
BY_CHECK = {
    34: ("health.liveness", "health.readiness", "health.ext-proc-service"),
    36: ("pick.header-and-metadata", "pick.same-in-both", "pick.form", "pick.in-pool"),
    37: ("subset.binding",),
    38: ("subset.empty-503", "subset.none-eligible-503"),
    39: ("request.same-bytes", "request.one-end", "request.ends-by-trailers"),
}
"""Faults of pickers, by the check that must name them."""
NO_PICK_AT_ALL = {"pick.header-only": "GET /v1/models: no answer in time", "request.order": "no endpoint in them"}
"""Faults of streams by which a pick is lost too, so that 36 is named, and what it says."""


@asynccontextmanager
async def workers(port: int, models: object = MODELS, status: int = 200) -> AsyncIterator[None]:
    """What listens at both workers' addresses."""

    async def tell(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps(models), status=status, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    for name in ("w0", "w1"):
        await web.TCPSite(runner, ADDRESSES[name], port).start()
    yield
    await runner.cleanup()


async def probed(
    world: World, folder: Path, port: int, fault: Fault, *options: str, tls: grpc.ServerCredentials | None = None
) -> Judged:
    endpoints = (f"{ADDRESSES['w0']}:{port}", f"{ADDRESSES['w1']}:{port}")
    async with serving(fault, endpoints, tls=tls) as listening:
        at = f"127.0.0.1:{listening}"
        return await validate_beside(world, folder, "--probe", "--epp", at, "--health", at, *options)


async def test_no_false_alarm(tmp_path: Path):
    port = free_port()
    async with workers(port):
        judged = await probed(placed(port), tmp_path, port, Fault(), "--model", "llama")
    assert judged.alarms() == {}
    assert judged.code == 0
    for number in (34, 35, 36, 37, 38, 39, 49):
        assert judged.found[number][0] == "passed", judged.found[number]
    assert "2 endpoints" in judged.found[49][1]


@pytest.mark.parametrize(
    ("number", "name"),
    [*((number, name) for number, names in BY_CHECK.items() for name in names), *((36, it) for it in NO_PICK_AT_ALL)],
    ids=str,
)
async def test_a_picker_with_a_fault(number: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    own = tuple(f"{ADDRESSES[it]}:{port}" for it in ("w0", "w1"))
    monkeypatch.setattr(broken_picks, "ENDPOINTS", own)
    fault, says = (broken_picks.FAULTS | broken_bodies.FAULTS)[name]
    async with workers(port):
        judged = await probed(placed(port), tmp_path, port, fault)
    assert judged.code == 1
    assert judged.headline.startswith(f"not ready: {number} "), judged.headline
    if name not in NO_PICK_AT_ALL:
        assert name in judged.headline
    assert NO_PICK_AT_ALL.get(name, says.replace(ENDPOINTS[0], own[0])) in judged.headline


async def test_nobody_listens(tmp_path: Path):
    """A picker that cannot be reached is no picker that fails: the run decides nothing."""
    at = f"127.0.0.1:{free_port()}"
    async with workers(port := free_port()):
        judged = await validate_beside(placed(port), tmp_path, "--probe", "--epp", at, "--health", at)
    assert judged.code == 3
    assert judged.headline.startswith("inconclusive: 34 ")


async def test_what_it_speaks_counts_not_what_objects_say(tmp_path: Path):
    port = free_port()
    world = placed(port)
    variants.of_controller(world, "agentgateway.dev/agentgateway")
    world["config_maps"][0]["data"]["EPP_SECURE_SERVING"] = "true"
    async with workers(port):
        judged = await probed(world, tmp_path, port, Fault())
    assert judged.headline.startswith("not ready: 35 ")
    assert "speaks plain text, gateway expects TLS" in judged.headline


@pytest.mark.parametrize(
    ("gateway", "says"),
    [
        (test_gateways.agentgateway, None),
        (test_gateways.istio, None),
        (test_gateways.istio_in_plain_text, "speaks TLS, gateway expects plain text"),
        (test_gateways.kgateway, None),
        (test_gateways.nginx, None),
    ],
)
async def test_a_picker_that_speaks_tls(gateway: Callable[[World], None], says: str | None, tmp_path: Path):
    port = free_port()
    world = placed(port)
    world["config_maps"][0]["data"]["EPP_SECURE_SERVING"] = "true"
    gateway(world)
    pair = trustme.CA().issue_cert("epp.llm.svc")
    tls = grpc.ssl_server_credentials([(pair.private_key_pem.bytes(), pair.cert_chain_pems[0].bytes())])
    async with workers(port):
        judged = await probed(world, tmp_path, port, Fault(), tls=tls)
    if says is None:
        assert judged.alarms() == {}
        assert "speaks TLS" in judged.found[35][1]
    else:
        assert judged.headline.startswith("not ready: 35 ")
        assert says in judged.headline


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        ({"models": {"data": []}}, (), "model  not registered"),
        ({"models": {"data": [{"id": "other"}]}}, ("--model", "llama"), "model llama not registered"),
        ({"models": ["\x00"]}, (), "not registered"),
        ({"status": 503}, (), "answers GET /v1/models with 503"),
    ],
)
async def test_a_worker_with_a_fault(given: dict, options: tuple[str, ...], says: str, tmp_path: Path):
    port = free_port()
    async with workers(port, **given):
        judged = await probed(placed(port), tmp_path, port, Fault(), *options)
    assert judged.headline.startswith("not ready: 49 ")
    assert says in judged.headline


async def test_a_worker_that_does_not_listen(tmp_path: Path):
    judged = await probed(placed(free_port()), tmp_path, free_port(), Fault())
    assert judged.code == 1
    assert judged.found[49][0] == "failed"
    assert "cannot reach 127.0.0.2:" in judged.found[49][1]


def test_every_check_that_probes_has_its_fault():
    probes = {check.rule.number for check in LIVE if check.rule.mode is Mode.PROBE}
    assert probes == {*BY_CHECK, 40, 49}
