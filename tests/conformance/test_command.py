"""`epp conformance` as a user runs it: its verdict on our own picker, its reports, and what it says to mistakes."""

import asyncio
import json
import socket
import xml.etree.ElementTree as ElementTree

import pytest

from epp.cli import main
from tests.test_app import environ, serving, status  # noqa: F401 - environ is a fixture

from .correct import Fault
from .correct import serving as broken


@pytest.fixture
def kit(capsys):
    """Runs `epp conformance`; its exit code, what it printed, and what it complained of."""

    def run(*arguments):
        capsys.readouterr()
        code = main(["conformance", *arguments])
        return code, *capsys.readouterr()

    return run


def at(port):
    return f"127.0.0.1:{port}"


POOL = "endpoints: [{name: w0, address: 10.0.0.1, ports: [8000, 8001]}, {name: w1, address: 'fd00::2', ports: [8000]}]"
DESCRIBED = ("--endpoint", "10.0.0.1:8000", "--endpoint", "10.0.0.1:8001", "--endpoint", "[fd00::2]:8000")


@pytest.mark.parametrize("transport", ["grpcio", "http2"])
def test_our_own_picker_keeps_every_rule(environ, tmp_path, kit, transport):  # noqa: F811
    (tmp_path / "endpoints.yaml").write_text(POOL)
    junit = tmp_path / "junit.xml"
    with serving({**environ, "EPP_TRANSPORT": transport}) as process:
        status(environ, process)
        target, health = at(environ["EPP_GRPC_PORT"]), at(environ["EPP_HEALTH_PORT"])
        code, printed, _ = kit(
            target, "--health", health, "--timeout", "20", "--json", "--junit", str(junit), *DESCRIBED
        )
    results = json.loads(printed)["results"]
    not_passed = {test["name"]: test["message"] for test in results["tests"] if test["status"] != "passed"}
    assert code == 0, not_passed
    slow = {"pick.in-time"}
    assert {name for name in not_passed if not name.startswith("hooks.")} - slow == {"refusal.empty-pool-503"}
    assert ElementTree.parse(junit).getroot().get("tests") == str(results["summary"]["tests"])


def test_our_own_picker_with_test_hooks_can_take_part_in_the_suite(environ, tmp_path, kit):  # noqa: F811
    (tmp_path / "endpoints.yaml").write_text(POOL)
    with serving({**environ, "EPP_CONFORMANCE_HOOKS": "true"}) as process:
        status(environ, process)
        code, printed, _ = kit(at(environ["EPP_GRPC_PORT"]), "--only", "hooks.*", "--hooks", "--json", *DESCRIBED)
    assert code == 0, printed
    assert json.loads(printed)["results"]["summary"]["passed"] == 5


def test_our_own_picker_with_an_empty_pool_refuses_as_it_must(environ, tmp_path, kit):  # noqa: F811
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    with serving(environ) as process:
        status(environ, process)
        target, health = at(environ["EPP_GRPC_PORT"]), at(environ["EPP_HEALTH_PORT"])
        code, printed, _ = kit(target, "--health", health, "--timeout", "20", "--empty")
        undeclared, doubt, _ = kit(target, "--only", "pick.form", "--json")
    assert code == 0, printed
    assert undeclared == 3
    assert "give --empty" in doubt


async def test_a_broken_must_ends_with_1_and_says_what_it_means(tmp_path, kit):
    ctrf = tmp_path / "ctrf.json"
    async with broken(Fault(health={"liveness": 2})) as port:
        code, printed, _ = await asyncio.to_thread(kit, at(port), "--only", "health.*", "--ctrf", str(ctrf))
    assert code == 1
    assert "Check('liveness'): NOT_SERVING" in printed
    assert "kubelet restarts healthy pickers" in printed
    (failed,) = [test for test in json.loads(ctrf.read_text())["results"]["tests"] if test["status"] == "failed"]
    assert failed["name"] == "health.liveness"
    assert failed["extra"]["level"] == "MUST"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TARGET is missing"),
        (["nowhere"], "'nowhere': expected host:port"),
        (["127.0.0.1:1", "--endpoint", "worker:80"], "'worker:80': expected ip:port"),
        (["127.0.0.1:1", "--only", "pick.frm"], "no such check"),
        (["127.0.0.1:1", "--cert", "x"], "--cert and --key"),
        (["127.0.0.1:1", "--ca", "/nowhere.pem"], "--ca /nowhere.pem: no such file"),
        (["127.0.0.1:1", "--timeout", "0"], "--timeout 0"),
        (["127.0.0.1:1", "--empty", "--endpoint", "10.0.0.1:80"], "an empty pool has no endpoints"),
    ],
)
def test_bad_input_is_named_and_ends_with_2(kit, arguments, message):
    code, _, complaint = kit(*arguments)
    assert code == 2
    assert message in complaint


def test_nobody_there_ends_with_3(kit):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        code, _, complaint = kit(at(probe.getsockname()[1]))
    assert code == 3
    assert "refused" in complaint


def test_what_speaks_no_grpc_ends_with_3(kit):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        code, _, complaint = kit(at(listener.getsockname()[1]), "--plaintext", "--timeout", "0.5")
    assert code == 3
    assert "no gRPC connection within 0.5 s" in complaint


def test_the_list_names_checks_and_where_their_rules_come_from(kit):
    code, printed, _ = kit("--list", "--only", "pick.form")
    assert code == 0
    assert "pick.form" in printed
    assert "GIE" in printed
