"""`epp validate --aicr` as an AICR check image is run: mounted files, variables, exit codes, termination log."""

import os
from pathlib import Path

import pytest

from epp.cli import main
from epp.readiness.aicr import contract
from epp.readiness.snapshot import files
from epp.readiness.snapshot.document import State, seal
from tests.readiness import variants
from tests.readiness.test_constraints import RECIPE
from tests.readiness.world import World, body_of, healthy, meta


@pytest.fixture
def aicr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the image over a recorded snapshot; its exit code and termination message."""
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(contract, "TERMINATION_LOG", str(log))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_bytes(RECIPE)
    monkeypatch.setenv("AICR_RECIPE_PATH", str(recipe))
    monkeypatch.setenv("AICR_RUN_ID", "run-1")
    monkeypatch.setenv("AICR_VALIDATOR_NAME", "epp-readiness")
    monkeypatch.setenv("AICR_VALIDATOR_PHASE", "conformance")

    def run(world: World, **more) -> tuple[int, str]:
        file = tmp_path / "snapshot.yaml"
        file.write_bytes(files.to_yaml(seal(body_of(world, **more))))
        return main(["validate", "--aicr", "-s", str(file)]), log.read_text()

    run.log = log
    return run


def test_passed_with_evidence(aicr, capsys: pytest.CaptureFixture[str]):
    assert aicr(healthy()) == (0, "no fault found offline")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no fault found offline"
    assert "the recipe's own checks, judged by AICR: inference-gateway, dra-support" in lines
    assert "AICR run: run-1, check: conformance/epp-readiness, snapshot: none mounted" in lines
    assert max(map(len, lines)) <= 512


def test_failed_with_the_broken_link(aicr):
    world = healthy()
    variants.picker_service_missing(world)
    assert aicr(world) == (1, "not ready: 28 picker.service: EPP Service llm/epp not found")


def test_the_recipe_is_judged(aicr):
    Path(os.environ["AICR_RECIPE_PATH"]).write_bytes(RECIPE.replace(b">= 1.34", b">= 1.99"))
    code, message = aicr(healthy())
    assert code == 1
    assert "3 platform.constraints" in message


def test_skipped_only_where_nothing_applies(aicr):
    world = healthy() | {"http_routes": [], "inference_pools": [], "gateways": []}
    world["dynamo_graphs"] = [
        {"metadata": meta("g", "llm"), "spec": {"components": [{"name": "f", "type": "frontend"}]}}
    ]
    assert aicr(world)[0] == 2
    code, message = aicr(healthy(), unread={"pods": State.DENIED})
    assert code == 3
    assert message.startswith("inconclusive")


def test_a_misspelt_option_is_other(aicr, capsys: pytest.CaptureFixture[str]):
    """Exit code 2 would say skipped."""
    assert main(["validate", "--aicr", "--naemspace", "llm"]) == 3
    assert "unrecognized arguments: --naemspace" in capsys.readouterr().err
    assert aicr.log.read_text() == "the check's own options are wrong: see its log"
    with pytest.raises(SystemExit, match="2"):
        main(["validate", "--naemspace", "llm"])


def test_a_crash_is_other(aicr, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Exit code 1 would say failed."""

    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("\u00e9" * 5000)

    monkeypatch.setattr("epp.readiness.command.find", crash)
    code, message = aicr(healthy())
    assert code == 3
    assert message.startswith("internal: ZeroDivisionError: \u00e9")
    assert 4090 < len(message.encode()) <= 4096
    assert "Traceback" in capsys.readouterr().err


def test_a_broken_mount_is_other(aicr, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("AICR_RECIPE_PATH", "/nowhere/recipe.yaml")
    code, message = aicr(healthy())
    assert code == 3
    assert message == "recipe /nowhere/recipe.yaml: AICR_RECIPE_PATH names no file"
    assert capsys.readouterr().out == ""
