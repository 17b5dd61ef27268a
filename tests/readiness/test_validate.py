"""`epp validate` as a user runs it: reports and exit codes."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from epp.cli import main
from epp.readiness.judge import FRONTEND
from epp.readiness.snapshot import files
from epp.readiness.snapshot.document import State, seal
from tests.readiness import variants
from tests.readiness.world import World, body_of, healthy, meta


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def recorded(tmp_path: Path):
    def record(world: World, **more) -> str:
        file = tmp_path / "snapshot.yaml"
        file.write_bytes(files.to_yaml(seal(body_of(world, **more))))
        return str(file)

    return record


def validate(*arguments: str) -> int:
    return main(["validate", *arguments])


def test_no_fault_found_offline(recorded, capsys: pytest.CaptureFixture[str]):
    assert validate("--offline", "-s", recorded(healthy()), "--max-age", "1e9") == 0
    shown = capsys.readouterr().out
    assert "no fault found offline" in shown
    assert "Gateway infra/gw, InferencePool llm/pool (plain)" in shown
    assert "AICR's check" in shown
    assert not re.search(r"\bready$", shown.strip())


def test_the_first_broken_link_in_every_report(recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    world = healthy()
    variants.picker_service_missing(world)
    places = {form: tmp_path / form for form in ("ctrf", "junit", "evidence")}
    options = [part for form, place in places.items() for part in (f"--{form}", str(place))]
    assert validate("-s", recorded(world), "--json", *options) == 1
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(places["ctrf"].read_bytes()) | {"timestamp": document["timestamp"]}
    (test,) = [it for it in document["results"]["tests"] if it["status"] == "failed"]
    assert test["name"] == "28 picker.service"
    assert test["message"] == "EPP Service llm/epp not found"
    assert test["extra"]["objects"] == ["Service llm/epp"]
    assert test["extra"]["remediation"]
    blocked = next(it for it in document["results"]["tests"] if it["extra"]["id"] == 25)
    assert (blocked["status"], blocked["extra"]["blockedBy"]) == ("skipped", 28)
    assert document["results"]["summary"]["failed"] == 1
    failure = ElementTree.fromstring(places["junit"].read_bytes()).find(".//failure")
    assert failure.get("message") == "EPP Service llm/epp not found"
    text = places["evidence"].read_text()
    assert "**not ready: 28 picker.service: EPP Service llm/epp not found**" in text
    assert "sha256:" in text


def test_text_of_a_stranger_breaks_no_report(recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    world = healthy()
    variants.gateway_not_programmed(world)
    from tests.readiness.world import condition_of

    condition_of(variants.gateway(world), "Programmed")["message"] = "[red]\x1b[31m|<script>\x00" + "x" * 1000
    report, evidence = tmp_path / "junit", tmp_path / "evidence"
    assert validate("-s", recorded(world), "--junit", str(report), "--evidence", str(evidence)) == 1
    ElementTree.fromstring(report.read_bytes())
    assert "\x1b" not in capsys.readouterr().out
    assert "<script>" not in evidence.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--offline"], "--offline: expected a snapshot too"),
        (["-s", "/nowhere"], "No such file"),
        (["--constraint", "K8s >= 1"], "expected Type.Subtype.Key"),
        (["--recipe", "/nowhere"], "recipe /nowhere"),
        (["-s", "FILE", "--pool", "a/b/c"], "--pool a/b/c: expected namespace/name"),
        (["-s", "FILE", "--junit", "/nowhere/x"], "/nowhere/x: No such file"),
        (["-s", "cm://x"], "expected cm://namespace/name"),
        (["--offline", "-s", "FILE", "--probe"], "--probe, --traffic, --perf: not with --offline"),
        (["--perf", "61"], "--perf 61: expected seconds, up to 60"),
        (["--kill-command", "true"], "--kill-command, --stop-epp-command: expected --traffic too"),
        (["--traffic", "--stop-epp-command", "true"], "expected both or none"),
        (["--traffic", "--requests", "0"], "--requests 0: expected 1 to 1000"),
        (["--traffic", "--url", "gw:80"], "--url gw:80: expected http://HOST:PORT"),
        (["--traffic", "--api-key-env", "NO_SUCH_KEY"], "the variable is not set"),
    ],
)
def test_bad_input_is_2(arguments: list[str], complaint: str, recorded, capsys):
    file = recorded(healthy())
    assert validate(*(file if part == "FILE" else part for part in arguments)) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda data: data[:-40], "digest does not fit"),
        (lambda data: data[: len(data) // 2], "snapshot"),
        (lambda data: data.replace(b"readiness.epp/v1", b"readiness.epp/v9"), "another version of epp"),
        (lambda data: data.replace(b"10.0.3.1", b"10.0.3.9"), "digest does not fit"),
        (lambda data: data + b"#" * (100 * 1024 * 1024), "over 32 MiB"),
    ],
    ids=["truncated", "half", "future", "tampered", "huge"],
)
def test_a_spoilt_snapshot_is_2(spoil, complaint: str, recorded, capsys: pytest.CaptureFixture[str]):
    file = Path(recorded(healthy()))
    file.write_bytes(spoil(file.read_bytes()))
    assert validate("--offline", "-s", str(file)) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_what_is_asked_for_by_an_option_is_asked_for_by_no_other(recorded, capsys: pytest.CaptureFixture[str]):
    assert validate("-s", recorded(healthy()), "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    asking = {it["extra"]["id"]: it["message"] for it in results["tests"] if it["extra"]["mode"] != "offline"}
    assert set(asking.values()) == {"asks the EPP: --probe", "sends requests: --traffic"}
    assert "load" not in results["environment"]["extra"]


def test_dynamos_frontend_is_asked_nothing(recorded, capsys: pytest.CaptureFixture[str]):
    world = healthy() | {"http_routes": [], "inference_pools": [], "gateways": []}
    world["dynamo_graphs"] = [
        {"metadata": meta("g", "llm"), "spec": {"services": {"Frontend": {"componentType": "frontend"}}}}
    ]
    assert validate("-s", recorded(world), "--probe", "--traffic", "--json") == 3
    tests = json.loads(capsys.readouterr().out)["results"]["tests"]
    later = [it for it in tests if it["extra"]["id"] > 5]
    assert len(later) >= 55
    assert {(it["status"], it["message"]) for it in later} == {("skipped", FRONTEND)}


def test_undecided_is_3(recorded, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = recorded(healthy(), unread={"endpoint_slices": State.DENIED})
    assert validate("-s", file) == 3
    assert "inconclusive: 11 gateway.data-plane: EndpointSlices of namespace infra" in capsys.readouterr().out
    assert validate("--kubeconfig", str(tmp_path / "none")) == 3


def test_a_crash_decides_nothing(recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("epp.readiness.command.find", crash)
    assert validate("-s", recorded(healthy())) == 3
    assert "internal: ZeroDivisionError" in capsys.readouterr().err


def test_constraints_and_demands(recorded, capsys: pytest.CaptureFixture[str]):
    file = recorded(healthy())
    assert validate("-s", file, "--constraint", "K8s.server.version>=1.34") == 0
    assert validate("-s", file, "--constraint", "K8s.server.version < 1.34") == 1
    assert validate("-s", file, "--failure-mode", "FailOpen") == 1
    assert "failureMode is FailClose, policy wants FailOpen" in capsys.readouterr().out
    assert validate("-s", file, "--min-ready", "3") == 1
    assert validate("-s", file, "--min-timeout", "600") == 1


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]):
    assert validate("--list") == 0
    assert "gateway.no-foreign-sidecar" in capsys.readouterr().out
