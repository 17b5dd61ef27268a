"""`epp validate --traffic` through a real Envoy: each fault that only requests show is named by its own check."""

import copy
import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from epp.readiness.live.ask import TRAFFIC
from epp.simulate.envoy import DESTINATION_HEADER, EnvoyConfig, bootstrap_config, running_bootstrap
from epp.simulate.processes import Picker, Worker, running_picker, running_workers
from tests.envoy.chain import worker_options
from tests.readiness.live import ADDRESSES, Judged, placed, validate
from tests.readiness.translator import translate
from tests.readiness.world import World, one
from tests.waiting import free_port

WORKERS = ("w0", "w1")
SILENT = socket.create_server(("127.0.0.1", 0))
"""Takes connections and says nothing."""
SILENT_PORT = SILENT.getsockname()[1]
Change = Callable[[dict], None]


@dataclass
class Stage:
    """Workers and an EPP at work, and the objects that describe them; each test brings a gateway."""

    world: World
    workers: dict[str, Worker]
    picker: Picker
    running: ExitStack
    settings: dict[str, str]
    folder: Path
    commands: dict[str, str]
    """That stop and start the EPP."""

    def stop(self) -> None:
        self.picker.process.kill()
        self.running.close()

    def start(self) -> None:
        self.running = ExitStack()
        self.picker = self.running.enter_context(running_picker(self.settings, self.folder))

    def validate(
        self,
        *options: str,
        world: World | None = None,
        gateway: World | None = None,
        change: Change = lambda _: None,
    ) -> Judged:
        """Behind an Envoy of the world's objects, or of others, with a change of what was made of them."""
        world = world or self.world
        nonce = secrets.token_hex(8)
        bootstrap = translate(gateway or world, nonce)
        change(bootstrap)
        with running_bootstrap(bootstrap, nonce, folder=self.folder) as envoy:
            return self.ask(envoy.address, *options, world=world)

    def ask(self, address: str, *options: str, world: World | None = None) -> Judged:
        where = ("--url", f"http://{address}", "--epp-status", f"http://127.0.0.1:{self.picker.admin_port}")
        limits = ("--traffic", "--requests", "8", "--wait", "60", "--model", "simulated")
        return validate(world or self.world, self.folder, *where, *limits, *options)


@contextmanager
def switches(**actions: Callable[[], None]) -> Iterator[dict[str, str]]:
    """A command for each action, which one thread of this process then does: children end with their thread."""

    class Switch(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            actions[self.path[1:]]()
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = HTTPServer(("127.0.0.1", 0), Switch)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    ask = "import sys, urllib.request as it; it.urlopen(sys.argv[1], data=b'', timeout=100)"
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield {name: f'{sys.executable} -c "{ask}" {url}/{name}' for name in actions}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def staged(
    folder: Path, model: Path, *, policy: str = "", known: tuple[str, ...] = WORKERS, roles: bool = False
) -> Iterator[Stage]:
    port = free_port()
    folder.mkdir(exist_ok=True)
    options = (*worker_options(model), "--port", str(port))
    hosts = {name: (*options, "--host", ADDRESSES[name]) for name in WORKERS}
    with running_workers(hosts, folder) as running:
        file = folder / "endpoints.json"
        entries = [{"name": name, "address": ADDRESSES[name], "ports": [port]} for name in known]
        for entry, role in zip(entries, ("prefill", "decode"), strict=False):
            entry |= {"role": role} if roles else {}
        file.write_text(json.dumps({"endpoints": entries}))
        settings = {
            "EPP_ENDPOINTS_FILE": str(file),
            "EPP_TOKENIZER_PATH": str(model),
            "EPP_GRPC_PORT": str(free_port()),
            "EPP_HEALTH_PORT": str(free_port()),
            "EPP_METRICS_PORT": str(free_port()),
            "EPP_ADMIN_PORT": str(free_port()),
        } | ({"EPP_POLICY": policy} if policy else {})
        names = {"grpc": "EPP_GRPC_PORT", "health": "EPP_HEALTH_PORT", "metrics": "EPP_METRICS_PORT"}
        ports = {name: int(settings[setting]) for name, setting in names.items()}
        stage = Stage(placed(port, ports), {it.name: it for it in running}, None, ExitStack(), settings, folder, {})
        with switches(stop=stage.stop, start=stage.start) as stage.commands:
            stage.start()
            try:
                yield stage
            finally:
                stage.running.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), model_folder) as it:
        yield it


def clusters(bootstrap: dict) -> dict[str, dict]:
    return {it["name"]: it for it in bootstrap["static_resources"]["clusters"]}


def manager(bootstrap: dict) -> dict:
    return bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def routes(bootstrap: dict) -> Iterator[dict]:
    for host in manager(bootstrap)["route_config"]["virtual_hosts"]:
        yield from host["routes"]


def no_route(bootstrap: dict) -> None:
    manager(bootstrap)["route_config"]["virtual_hosts"] = []


def no_worker(bootstrap: dict) -> None:
    clusters(bootstrap)["pool"]["load_assignment"]["endpoints"] = []


def picker_elsewhere(bootstrap: dict) -> None:
    (place,) = clusters(bootstrap)["epp-of-pool"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    place["endpoint"]["address"]["socket_address"]["port_value"] = free_port()


def nobody_asks(bootstrap: dict) -> None:
    """As Istio with a CORS filter on the rule: the override is lost, the EPP never called."""
    for route in routes(bootstrap):
        for backend in route["route"]["weighted_clusters"]["clusters"]:
            del backend["typed_per_filter_config"]


def pick_is_ignored(bootstrap: dict) -> None:
    """The EPP is asked and the load balancer decides all the same."""
    pool = clusters(bootstrap)["pool"]
    del pool["load_balancing_policy"]


def answers_are_buffered(bootstrap: dict) -> None:
    (filter_, *_) = manager(bootstrap)["http_filters"]
    filter_["typed_config"]["processing_mode"]["response_body_mode"] = "BUFFERED"


def every_path(bootstrap: dict) -> None:
    for route in routes(bootstrap):
        route["match"] = {"prefix": "/"}


def timeout_ends_it(bootstrap: dict) -> None:
    """All workers are as slow as can be."""
    for route in routes(bootstrap):
        route["route"]["timeout"] = "0.3s"
    places = clusters(bootstrap)["pool"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    places[:] = [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": SILENT_PORT}}}}]


@pytest.mark.parametrize(
    ("change", "number", "says"),
    [
        (no_route, 50, "status 404, route not active (see 15-17)"),
        (no_worker, 50, "status 503, no eligible endpoint"),
        (picker_elsewhere, 50, "status 500, ext_proc broken (see 12, 35)"),
        (timeout_ends_it, 50, "status 504, the Gateway's timeout ended it (see 20)"),
        (nobody_asks, 51, "200 received but the EPP was not consulted (FailOpen or bypass): 0 of 3"),
        (pick_is_ignored, 52, "EPP chose "),
        (answers_are_buffered, 53, "response is buffered by the gateway"),
        (every_path, 56, "unmatched request reached the pool: status 404, EPP asked "),
    ],
)
def test_a_gateway_with_a_fault(stage: Stage, change: Change, number: int, says: str) -> None:
    judged = stage.validate("--wait", "2", change=change)
    assert judged.code == 1
    assert judged.headline.startswith(f"not ready: {number} "), judged.headline
    assert says in judged.headline


def test_no_false_alarm(stage: Stage) -> None:
    judged = stage.validate("--probe")
    assert judged.alarms() == {}
    assert judged.code == 0
    assert "8 of 8 served by the picked worker" in judged.found[52][1]
    skipped = {number for number, (verdict, _) in judged.found.items() if verdict == "skipped" and number > 48}
    assert skipped == {57, 58, 59}
    assert "load" not in judged.facts


def test_a_pick_outside_of_the_pool(tmp_path: Path, model_folder: Path) -> None:
    """Envoy AI Gateway goes wherever the EPP says; the EPP says a worker that the pool does not select."""
    with staged(tmp_path, model_folder, known=("w1",)) as stage:
        world = copy.deepcopy(stage.world)
        one(world, "pods", "w1")["metadata"]["labels"] = {"app": "stranger"}
        nonce = secrets.token_hex(8)
        with running_bootstrap(bootstrap_config(EnvoyConfig(picker_port=stage.picker.port), nonce), nonce) as envoy:
            judged = stage.ask(envoy.address, world=world)
        assert judged.headline.startswith("not ready: 52 ")
        assert "status 200, served by no pod of the pool" in judged.headline
        # Istio's gateways do not go there: any worker of the pool serves, unscheduled.
        judged = stage.validate(world=world)
        assert judged.headline.startswith("not ready: 52 ")
        assert f"gateway served {ADDRESSES['w0']}" in judged.headline


def test_a_client_that_chooses(stage: Stage) -> None:
    """The gateway takes the header of the client, whatever the EPP makes of it."""

    def honoured(bootstrap: dict) -> None:
        policy = clusters(bootstrap)["pool"]["load_balancing_policy"]["policies"][0]["typed_extension_config"]
        policy["typed_config"]["override_host_sources"].insert(0, {"header": "x-from-client"})
        copied = {"header": {"key": "x-from-client", "value": f"%REQ({DESTINATION_HEADER})%"}}
        typed = {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"append": copied | {"append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}]},
        }
        manager(bootstrap)["http_filters"].insert(0, {"name": "copy", "typed_config": typed})
        pool = clusters(bootstrap)["pool"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        pool.append({"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}})

    judged = stage.validate(change=honoured)
    assert judged.headline.startswith("not ready: 54 "), judged.headline
    assert "client-supplied destination header is honoured: status 503" in judged.headline


def test_advice(tmp_path: Path, model_folder: Path) -> None:
    with staged(tmp_path / "a", model_folder, policy="round-robin") as stage:
        judged = stage.validate()
    assert judged.found[55][0] == "warned"
    assert "no prefix affinity: 3 of 6" in judged.found[55][1]
    assert judged.code == 0
    with staged(tmp_path / "b", model_folder, known=("w0",)) as stage:
        judged = stage.validate()
    assert judged.found[60] == ("warned", f"endpoint {ADDRESSES['w1']}:{port_of(stage)} was never chosen")
    assert judged.code == 0


def port_of(stage: Stage) -> int:
    return int(one(stage.world, "inference_pools", "pool")["spec"]["targetPorts"][0]["number"])


@pytest.mark.parametrize("mode", ["FailClose", "FailOpen"])
def test_the_failure_mode_is_tried(stage: Stage, mode: str) -> None:
    world = copy.deepcopy(stage.world)
    one(world, "inference_pools", "pool")["spec"]["endpointPickerRef"]["failureMode"] = mode
    options = ("--stop-epp-command", stage.commands["stop"], "--start-epp-command", stage.commands["start"])
    judged = stage.validate(*options, world=world)
    claims, other = copy.deepcopy(world), "FailOpen" if mode == "FailClose" else "FailClose"
    one(claims, "inference_pools", "pool")["spec"]["endpointPickerRef"]["failureMode"] = other
    wrong = stage.validate(*options, world=claims, gateway=world)
    assert judged.code == 0, judged.headline
    assert judged.found[57][0] in ("passed", "warned")
    assert wrong.headline.startswith("not ready: 57 "), wrong.headline
    assert f"failureMode {other} not honoured: got {'500' if mode == 'FailClose' else '200'}" in wrong.headline


def test_a_worker_dies(tmp_path: Path, model_folder: Path) -> None:
    with staged(tmp_path, model_folder) as stage:
        world = copy.deepcopy(stage.world)
        one(world, "http_routes", "chat")["spec"]["rules"][0]["retry"] = {"attempts": 2}
        pids = {name: worker.process.pid for name, worker in stage.workers.items()}
        kill = tmp_path / "kill.py"
        kill.write_text(f"import os, sys\nos.kill({pids}[sys.argv[1]], {int(signal.SIGKILL)})\n")
        judged = stage.validate("--kill-command", f"{sys.executable} {kill} {{pod}}", world=world)
        assert judged.code == 0
        assert judged.found[58][0] == "passed", judged.found[58]
        assert "then all were served; the route retries 2 times" in judged.found[58][1]


def test_nobody_is_left(tmp_path: Path, model_folder: Path) -> None:
    with staged(tmp_path, model_folder) as stage:
        kill = tmp_path / "kill.py"
        pids = [worker.process.pid for worker in stage.workers.values()]
        kill.write_text(f"import os\nfor pid in {pids}:\n    os.kill(pid, {int(signal.SIGKILL)})\n")
        judged = stage.validate("--kill-command", f"{sys.executable} {kill}", "--wait", "3")
        assert judged.headline.startswith("not ready: 58 ")
        assert "requests still fail" in judged.headline


def test_a_load_is_asked_for_and_bounded(stage: Stage) -> None:
    judged = stage.validate("--perf", "0.5")
    assert "0 failed" in judged.facts["load"]


def test_prefill_on_workers_of_its_own(tmp_path: Path, model_folder: Path) -> None:
    with staged(tmp_path, model_folder, roles=True) as stage:
        judged = stage.validate()
        assert judged.found[59] == ("passed", "disaggregated"), judged.found[59]
        os.kill(stage.workers["w0"].process.pid, signal.SIGKILL)


def test_every_check_with_traffic_has_its_fault() -> None:
    assert {check.rule.number for check in TRAFFIC} == set(range(50, 61))
