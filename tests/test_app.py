"""`epp serve` as a process: it comes up, says why it cannot, and leaves when told to."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest

from epp.settings import PREFIX
from tests.waiting import free_port


@pytest.fixture
def environ(tmp_path):
    """The settings of an EPP with one endpoint, on free loopback ports."""
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints:\n  - {name: w0, address: 127.0.0.1, ports: [8000]}\n")
    ports = {f"EPP_{name}_PORT": str(free_port()) for name in ("GRPC", "HEALTH", "METRICS", "ADMIN")}
    return {"EPP_HOST": "127.0.0.1", "EPP_ENDPOINTS_FILE": str(endpoints), "EPP_KV_EVENTS": "false", **ports}


@contextmanager
def serving(environ):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    process = subprocess.Popen(
        [sys.executable, "-m", "epp.cli", "serve"], env={**clean, **environ}, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def status(environ, process):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{environ['EPP_ADMIN_PORT']}/status", timeout=5) as answer:
                document = json.load(answer)
            if document["process"]["ready"]:
                return document
        except OSError:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("not ready in time")


def test_it_shows_its_endpoints_and_leaves_with_0_on_sigterm(environ):
    with serving(environ) as process:
        document = status(environ, process)
        assert [endpoint["host_port"] for endpoint in document["pool"]["endpoints"]] == ["127.0.0.1:8000"]
        assert document["settings"]["EPP_GRPC_PORT"] == environ["EPP_GRPC_PORT"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("taken", ["GRPC", "HEALTH", "METRICS", "ADMIN"])
def test_a_taken_port_is_named_and_ends_with_3(environ, taken):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", int(environ[f"EPP_{taken}_PORT"])))
        holder.listen()
        with serving(environ) as process:
            _, log = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"EPP_{taken}_PORT" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoints: [{name: w0, ports: [1]}]", "address"),
        ("endpoints: [", "wrong.yaml:1:"),
    ],
)
def test_a_wrong_endpoints_file_ends_with_2(environ, tmp_path, text, message):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text)
    with serving({**environ, "EPP_ENDPOINTS_FILE": str(wrong)}) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 2
    assert str(wrong) in log
    assert message in log
    assert "Traceback" not in log
