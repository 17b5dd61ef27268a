"""`epp simulate engine` as a command."""

import socket
from pathlib import Path

import pytest

from epp.cli import main


def test_a_folder_without_a_tokenizer_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "engine", "--tokenizer", str(tmp_path)]) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_a_taken_port_is_said_and_ends_with_3(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["simulate", "engine", "--tokenizer", str(model_folder), "--port", port]) == 3
    assert "cannot listen" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [("--blocks", "0"), ("--prefill-tokens-per-second", "0"), ("--prefill-worker", "x"), ("--sidecar", "y")]
)
def test_a_wrong_argument_is_bad_input(
    model_folder: Path, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", "engine", "--tokenizer", str(model_folder), *wrong])
    assert exit_.value.code == 2
    assert wrong[0] in capsys.readouterr().err
