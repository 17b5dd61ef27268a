"""The command line teaches, and a user's mistake ends with exit code 2 and no traceback."""

import subprocess
import sys

import pytest


def epp(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "epp.cli", *arguments], capture_output=True, text=True, env=environ, timeout=60
    )


def test_help_shows_an_example_and_the_exit_codes():
    answer = epp("serve", "--help")
    assert answer.returncode == 0
    assert "EPP_ENDPOINTS_FILE=" in answer.stdout
    assert "could not start" in answer.stdout


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"EPP_POLCY": "x"}, "did you mean EPP_POLICY"),
        ({"EPP_GRPC_PORT": "many"}, "EPP_GRPC_PORT='many': input should be a valid integer"),
    ],
)
def test_a_wrong_setting_is_named(environ, message):
    answer = epp("serve", **environ)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_settings_lists_every_name():
    answer = epp("settings")
    assert answer.returncode == 0
    assert "EPP_ENDPOINTS_FILE" in answer.stdout
    assert "DYN_KV_CACHE_BLOCK_SIZE" in answer.stdout
