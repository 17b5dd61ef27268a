"""`epp validate` as a user runs it: reports and exit codes."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from epp.cli import main
from epp.readiness.snapshot import files
from epp.readiness.snapshot.document import State, seal
from tests.readiness import variants
from tests.readiness.world import World, body_of, healthy


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
    ],
)
def test_bad_input_is_2(arguments: list[str], complaint: str, recorded, capsys):
    file = recorded(healthy())
    assert validate(*(file if part == "FILE" else part for part in arguments)) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_undecided_is_3(recorded, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = recorded(healthy(), unread={"endpoint_slices": State.DENIED})
    assert validate("-s", file) == 3
    assert "inconclusive: 11 gateway.data-plane: EndpointSlices of namespace infra" in capsys.readouterr().out
    assert validate("--kubeconfig", str(tmp_path / "none")) == 3


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
