"""The Envoy harness itself: what the other tests of this folder stand on."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from epp.settings import BodyMode
from epp.simulate.envoy import RUN_HEADER, Envoy, EnvoyConfig, EnvoyError, running_envoy
from tests.waiting import eventually


def ask(envoy: Envoy, destination: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=10)
    try:
        connection.request("POST", "/v1/x", b"abc", {"x-gateway-destination-endpoint": destination})
        response = connection.getresponse()
        return response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}
    finally:
        connection.close()


def test_goes_where_the_destination_header_says_and_proves_which_envoy_answered() -> None:
    with running_envoy(EnvoyConfig(direct_answer="hello")) as envoy:
        status, body, headers = ask(envoy, f"127.0.0.1:{envoy.answer_port}")
        assert (status, body) == (200, b"hello")
        assert headers[RUN_HEADER] == envoy.nonce
        assert envoy.stats("http.proxy.downstream_rq_2xx") == {"http.proxy.downstream_rq_2xx": 1}
        assert ask(envoy, "127.0.0.1:1")[0] == 503


def test_two_at_once_do_not_share_a_port() -> None:
    with (
        running_envoy(EnvoyConfig(direct_answer="a")) as first,
        running_envoy(EnvoyConfig(direct_answer="b")) as second,
    ):
        assert ask(first, f"127.0.0.1:{first.answer_port}")[1] == b"a"
        assert ask(second, f"127.0.0.1:{second.answer_port}")[1] == b"b"
        assert first.nonce != second.nonce


def test_the_block_ends_envoy() -> None:
    with running_envoy(EnvoyConfig()) as envoy:
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", envoy.port), timeout=5).close()


def test_envoy_dies_with_its_parent() -> None:
    parent = (
        "from epp.simulate.envoy import *\nimport time\n"
        "with running_envoy(EnvoyConfig()) as envoy:\n    print(envoy.pid, flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("request_mode", [mode for mode in BodyMode if mode is not BodyMode.AUTO])
@pytest.mark.parametrize("response_mode", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED])
def test_envoy_accepts_every_mode_and_fails_closed_without_a_picker(
    request_mode: BodyMode, response_mode: BodyMode
) -> None:
    config = EnvoyConfig(picker_port=1, request_body=request_mode, response_body=response_mode)
    with running_envoy(config) as envoy:
        assert ask(envoy, "127.0.0.1:1")[0] in {500, 503}


def test_a_wrong_binary_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVOY", os.devnull)
    with pytest.raises(EnvoyError, match="ENVOY='/dev/null'"), running_envoy(EnvoyConfig()):
        pass
