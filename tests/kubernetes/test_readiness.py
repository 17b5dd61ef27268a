"""`epp validate` of the whole chain: a real API server, Envoy made from its objects, our EPP, simulated workers."""

import asyncio
import json
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from epp.simulate.envoy import EnvoyError, find_envoy, running_bootstrap
from epp.simulate.processes import Picker, running_picker, running_workers
from tests.envoy.chain import worker_options
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.readiness import CRDS, apply, named, put
from tests.kubernetes.test_rights import grant, token
from tests.readiness.live import ADDRESSES, placed
from tests.readiness.translator import translate
from tests.readiness.world import World, one
from tests.small_model import write_small_model
from tests.waiting import free_port

pytestmark = pytest.mark.envoy
NOT_HERE = {
    3: "no constraint",
    40: "overload",
    43: "plain workers",
    47: "name a plane",
    57: "--stop-epp-command",
    59: "no prefill workers",
}
"""Checks that have nothing to look at in this chain, and a word of the reason."""


@dataclass(frozen=True)
class Stage:
    """The whole chain at work."""

    picker: Picker
    options: tuple[str, ...]
    """Of `epp validate`: which cluster and namespace, and where the Gateway listens."""
    kill: str
    """A command that kills a worker."""


@pytest.fixture
async def stage(
    cluster: Cluster, upstream_crds: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    try:
        find_envoy()
    except EnvoyError as error:
        pytest.skip(str(error))
    await cluster.install(*(crd for crd in upstream_crds if crd["metadata"]["name"] in CRDS))
    port, model = free_port(), write_small_model(tmp_path)
    world = world_at_work(cluster.namespace, port)
    epp = one(world, "pods", "epp-1")
    world["pods"].remove(epp)
    await apply(cluster, world)
    await grant(cluster)
    own_rights = cluster.server.kubeconfig(tmp_path / "epp-kubeconfig", token=await token(cluster))
    monkeypatch.setenv("KUBECONFIG", str(own_rights))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with ExitStack() as stack:
        arguments = (*worker_options(model), "--port", str(port))
        hosts = {name: (*arguments, "--host", ADDRESSES[name]) for name in ("w0", "w1")}
        workers = await asyncio.to_thread(stack.enter_context, running_workers(hosts, tmp_path))
        settings = world["config_maps"][0]["data"] | {
            "EPP_NAMESPACE": cluster.namespace,
            "EPP_TOKENIZER_PATH": str(model),
        }
        picker = await asyncio.to_thread(stack.enter_context, running_picker(settings, tmp_path))
        ports = {"grpc": picker.port, "health": picker.health_port, "metrics": picker.metrics_port}
        epp["spec"]["containers"][0]["ports"] = [{"name": n, "containerPort": p} for n, p in ports.items()]
        await put(cluster, "pods", epp)
        nonce = secrets.token_hex(8)
        bootstrap = translate(world | {"pods": [*world["pods"], epp]}, nonce)
        envoy = await asyncio.to_thread(stack.enter_context, running_bootstrap(bootstrap, nonce, folder=tmp_path))
        kubeconfig = cluster.server.kubeconfig(tmp_path / "kubeconfig")
        where = ("--kubeconfig", str(kubeconfig), "-n", cluster.namespace, "--url", f"http://{envoy.address}")
        victims = {worker.name: worker.process.pid for worker in workers}
        kill = f"{sys.executable} {killer(tmp_path, victims)} {{pod}}"
        yield Stage(picker, (*where, "--epp-status", f"http://127.0.0.1:{picker.admin_port}"), kill)


def world_at_work(namespace: str, port: int) -> World:
    """The healthy world, at the addresses where its parts really run, with the base's own rights."""
    return named(placed(port), namespace) | {"roles": [], "role_bindings": []}


def killer(folder: Path, victims: dict[str, int]) -> Path:
    """A program that kills the worker of a pod, as a node that dies would."""
    file = folder / "kill.py"
    file.write_text(f"import os, sys\nos.kill({victims!r}[sys.argv[1]], {int(signal.SIGKILL)})\n")
    return file


async def validate(*arguments: str) -> tuple[int, dict[int, tuple[str, str]], dict]:
    """Exit code, status and message of each check, and the report's facts."""
    command = [sys.executable, "-m", "epp.cli", "validate", "--json", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    results = json.loads(done.stdout)["results"]
    found = {test["extra"]["id"]: (test["status"], test.get("message", "")) for test in results["tests"]}
    return done.returncode, found, results["environment"]


def not_passed(found: dict[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """Those that failed first."""
    others = sorted(found.items(), key=lambda one: one[1][0])
    return {number: result for number, result in others if result[0] != "passed"}


async def test_the_whole_chain(stage: Stage):
    code, found, _ = await validate(*stage.options, "--probe")
    assert code == 0, not_passed(found)
    unasked = {number for number, (_, why) in found.items() if why == "sends requests: --traffic"}
    assert unasked == set(range(50, 61))
    everything = ("--probe", "--traffic", "--model", "simulated", "--requests", "6", "--perf", "0.5")
    code, found, facts = await validate(*stage.options, *everything, "--kill-command", stage.kill)
    assert code == 0, not_passed(found)
    assert set(found) == set(range(1, 61))
    assert set(not_passed(found)) == set(NOT_HERE)
    for number, word in NOT_HERE.items():
        assert found[number][0] == "skipped"
        assert word in found[number][1]
    assert "6 of 6 served by the picked worker" in found[52][1]
    assert "then all were served" in found[58][1]
    assert "0 failed" in str(facts)
