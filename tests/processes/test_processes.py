"""Several real processes behind one port: one verdict, one status, one metrics page, and one of them killed."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.settings import TransportName
from epp.simulate.processes import Picker, running_picker
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def status(picker: Picker) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{picker.admin_port}/status", timeout=30) as response:
        return json.load(response)


def page(picker: Picker) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{picker.metrics_port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
        return text


def serving(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="readiness"), timeout=30
            )
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_one_port_one_verdict_one_status_and_a_killed_process_comes_back(tmp_path: Path):
    settings = {"EPP_ENDPOINTS": "127.0.0.1:1", "EPP_PROCESSES": "2", "EPP_TRANSPORT": TransportName.HTTP2}
    with running_picker(settings, tmp_path, stop_seconds=60) as picker:
        eventually(lambda: [each["ready"] for each in status(picker)["processes"]] == [True, True], 120)
        eventually(lambda: all(peer["present"] and peer["in_step"] for peer in status(picker)["peers"]["peers"]), 60)
        assert serving(picker.health_port)
        assert serving(picker.port)
        assert 'epp_peers_present{process="1"} 1.0' in page(picker)

        killed = status(picker)["processes"][1]["pid"]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: status(picker)["processes"][1]["restarts"] == 1, 60)
        assert serving(picker.health_port)
        assert serving(picker.port), "the other one serves"
        eventually(lambda: status(picker)["processes"][1]["ready"], 120)
        assert status(picker)["processes"][1]["pid"] != killed
        picker.process.send_signal(signal.SIGTERM)
        assert picker.process.wait(60) == 0


def test_processes_end_with_their_parent(tmp_path: Path):
    with running_picker({"EPP_ENDPOINTS": "127.0.0.1:1", "EPP_PROCESSES": "2"}, tmp_path) as picker:
        eventually(lambda: all(each["pid"] for each in status(picker)["processes"]), 60)
        pids = [each["pid"] for each in status(picker)["processes"]]
        picker.process.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), 60)
