"""Two replicas behind real Envoy: restarted one after the other, killed, and what clients see of it."""

import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from epp.settings import TransportName
from tests.envoy.chain import running_chain
from tests.envoy.replicas import Clients, ask, get, running_world
from tests.envoy.streamed import everything, first_token, in_one_packet, opened, status
from tests.waiting import eventually

HEALTH = {"picker_health_seconds": 0.25}
CHAT = b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}'


@pytest.mark.slow
def test_a_rolling_restart_under_load_loses_no_request_and_hardly_any_cached_share(
    tmp_path: Path, model_folder: Path, carrier: TransportName
) -> None:
    # What is known decides, and not how fast the workers seem on a busy machine.
    settings = {"EPP_SCORERS": "prefix:3,least-in-flight:1"}
    with running_world(tmp_path, model_folder, carrier=carrier, settings=settings, **HEALTH) as world:
        clients = Clients(world.envoy.port)
        clients.start(8)
        try:
            eventually(lambda: len(clients.asks) > 100, 120)
            begun = time.monotonic()
            eventually(lambda: clients.answered(begun) > 300, 120)
            rolled = time.monotonic()
            for i in (0, 1):
                world.replicas.running[i].process.send_signal(signal.SIGTERM)
                assert world.replicas.stopped(i) == 0
                world.replicas.start(i)
                eventually(lambda: world.healthy() == 2, 60)
                eventually(world.replicas.in_step, 60)
            done = time.monotonic()
            eventually(lambda: clients.answered(done) > 100, 60)
        finally:
            clients.stop()
        assert clients.failed() == []
        before, during = clients.cached_share(begun, rolled), clients.cached_share(rolled, time.monotonic())
        print(
            f"{carrier}: {len(clients.asks)} requests; cached share {before:.4f} before, {during:.4f} while restarted"
        )
        assert before > 0.5
        assert during > 0.95 * before
        for i in (0, 1):
            warm = world.replicas.status(i)["peers"]["warm_start"]
            assert warm["blocks"] > 0, warm


@pytest.mark.slow
@pytest.mark.parametrize("fails_open", [False, True])
def test_a_killed_replica_takes_only_its_own_exchanges_along(
    tmp_path: Path, model_folder: Path, carrier: TransportName, *, fails_open: bool
) -> None:
    with running_world(
        tmp_path,
        model_folder,
        carrier=carrier,
        worker_arguments=("--inter-token-ms", "50"),
        failure_mode_allow=fails_open,
        **HEALTH,
        picker_retries=3,
    ) as world:
        replicas = world.replicas
        streams = [opened(world.envoy.port, max_tokens=200) for _ in range(8)]
        for stream in streams:
            first_token(stream)
        eventually(lambda: (replicas.open(0), replicas.open(1)) == (4, 4))
        eventually(lambda: (replicas.mirrored(0), replicas.mirrored(1)) == (4, 4))
        replicas.running[0].process.kill()
        assert replicas.stopped(0) == -signal.SIGKILL
        after = [ask(world.envoy.port, f"after the kill {i}") for i in range(10)]
        assert [each.status for each in after] == [200] * 10, "connections that are refused are tried elsewhere"
        eventually(lambda: replicas.mirrored(1) == 0, 10)
        whole = [b"[DONE]" in everything(stream) for stream in streams]
        assert whole.count(True) == 4, "those on the other replica, and no more, though failures are allowed"
        eventually(lambda: replicas.open(1) == 0)
        replicas.start(0)
        eventually(lambda: world.healthy() == 2, 60)
        eventually(replicas.in_step, 60)


@pytest.mark.parametrize("fails_open", [False, True])
def test_without_any_replica_the_failure_mode_decides_for_requests_without_a_body(
    tmp_path: Path, model_folder: Path, *, fails_open: bool
) -> None:
    carrier = TransportName.HTTP2
    with running_world(tmp_path, model_folder, carrier=carrier, failure_mode_allow=fails_open, **HEALTH) as world:
        assert ask(world.envoy.port, "hello").status == 200
        for i in (0, 1):
            world.replicas.running[i].process.kill()
            world.replicas.stopped(i)
        answers = {status(in_one_packet(world.envoy.port, "/v1/chat/completions", CHAT)) for _ in range(5)}
        assert answers == {500}, "whatever the mode, as the body is on its way already"
        # Envoy lets it pass without a destination, where this Envoy's cluster has nobody; others would pick by chance.
        assert get(world.envoy.port, "/v1/models") == (503 if fails_open else 500)
        world.replicas.start(0)
        eventually(lambda: ask(world.envoy.port, "again").status == 200, 60)


@pytest.mark.slow
def test_a_proxy_with_one_connection_is_spread_over_processes_by_few_streams_on_each(
    tmp_path: Path, model_folder: Path
) -> None:
    settings = {"EPP_PROCESSES": "2", "EPP_MAX_CONNECTION_STREAMS": "1", "EPP_TRANSPORT": "http2"}
    slow = ("--inter-token-ms", "50")
    with running_chain(tmp_path, model_folder, settings=settings, worker_arguments=slow) as chain:
        eventually(lambda: all(each["ready"] for each in chain.status()["processes"]), 120)
        streams = []
        for _ in range(14):
            # One after the other: the proxy knows the limit when a connection is up, and not before.
            streams.append(opened(chain.envoy.port, max_tokens=900))
            first_token(streams[-1])
        page = (
            urllib.request.urlopen(f"http://127.0.0.1:{chain.picker.metrics_port}/metrics", timeout=30).read().decode()
        )
        used = re.findall(r'epp_exchanges_open\{process="(\d)"\} ([1-9]\d*)', page)
        assert len(used) == 2, used
        for stream in streams:
            stream.close()
