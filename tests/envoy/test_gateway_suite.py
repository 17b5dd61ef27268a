"""What the Gateway conformance suite asks of an EPP, with a real Envoy in a gateway's place, under its settings.

Two pools of echo servers, each with an EPP of its own; the second is FailOpen.
"""

import http.client
import json
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from epp.simulate.envoy import WORKER_HEADER, Envoy, running_bootstrap
from epp.simulate.processes import Picker, running_picker
from tests.envoy.streamed import in_one_packet, status
from tests.readiness.translator import translate
from tests.readiness.world import GIE, World, meta, pod
from tests.waiting import free_port, free_ports

SUITE = Path(__file__).parents[2] / "manifests" / "conformance" / "deployment.yaml"
STEER = "test-epp-endpoint-selection"
SERVED = "x-conformance-test-served-endpoint"
PODS = {"first": ("127.0.1.1", "127.0.1.2", "127.0.1.3"), "second": ("127.0.2.1", "127.0.2.2")}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def worker(self) -> str:
        return self.headers[WORKER_HEADER]


@dataclass
class Suite:
    """Envoy before both pools, and what a test needs to break one."""

    envoy: Envoy
    ports: dict[str, list[int]]
    settings: dict[str, dict[str, str]]
    running: dict[str, ExitStack]
    pickers: dict[str, Picker]
    folder: Path

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.envoy.port, timeout=30)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET" if body is None else "POST", path, body, given)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def many(self, count: int, path: str, steer: str = "") -> Counter[str]:
        """Who served; every request is answered with 200."""
        with ThreadPoolExecutor(5) as pool:
            answers = list(pool.map(lambda _: self.ask(path, b"{}", **({STEER: steer} if steer else {})), range(count)))
        assert {answer.status for answer in answers} == {200}
        return Counter(answer.worker for answer in answers)

    def places(self, pool: str) -> set[str]:
        return {f"{address}:{port}" for address in PODS[pool] for port in self.ports[pool]}

    def kill(self, pool: str) -> None:
        self.pickers[pool].process.kill()
        self.running.pop(pool).close()

    def start(self, pool: str) -> None:
        self.running[pool] = ExitStack()
        folder = self.folder / pool
        folder.mkdir(exist_ok=True)
        self.pickers[pool] = self.running[pool].enter_context(running_picker(self.settings[pool], folder))


class Echo(BaseHTTPRequestHandler):
    """Tells the headers and the body that came."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"".join(self._pieces())
        told = json.dumps({"headers": dict(self.headers), "body": body.decode()}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_POST = do_GET  # noqa: N815 - the base class calls it so

    def _pieces(self) -> Iterator[bytes]:
        """Of the body, which Envoy sends in chunks once an EPP has had it."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("content-length", 0)))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, *_: object) -> None:
        """Silence."""


class EchoServer(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def echoes(places: set[str]) -> Iterator[None]:
    servers = [EchoServer((address, int(port)), Echo) for address, port in (it.split(":") for it in places)]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}) for server in servers]
    for thread in threads:
        thread.start()
    yield
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("suite")
    ports = {"first": free_ports(3), "second": free_ports(1)}
    own = {pool: settings_of(folder, pool, ports[pool]) for pool in PODS}
    made = Suite(None, ports, own, {}, {}, folder)
    with ExitStack() as stack:
        stack.enter_context(echoes({place for pool in PODS for place in made.places(pool)}))
        stack.callback(lambda: [running.close() for running in made.running.values()])
        for pool in PODS:
            made.start(pool)
        nonce = secrets.token_hex(8)
        bootstrap = translate(world(ports, made.pickers), nonce)
        made.envoy = stack.enter_context(running_bootstrap(bootstrap, nonce, folder=folder))
        yield made


def settings_of(folder: Path, pool: str, ports: list[int]) -> dict[str, str]:
    """The settings that manifests/conformance gives, on a port that a restart keeps."""
    (container,) = yaml.safe_load(SUITE.read_text())["spec"]["template"]["spec"]["containers"]
    entries = [{"name": f"{pool}-{at}", "address": it, "ports": ports} for at, it in enumerate(PODS[pool])]
    file = folder / f"{pool}.json"
    file.write_text(json.dumps({"endpoints": entries}))
    given = {one["name"]: one["value"] for one in container["env"]}
    return given | {"EPP_ENDPOINTS_FILE": str(file), "EPP_GRPC_PORT": str(free_port())}


def world(ports: dict[str, list[int]], pickers: dict[str, Picker]) -> World:
    """As the suite's objects: a rule for each pool, and one that splits 70 to 30 between them."""
    made: World = {"inference_pools": [], "services": [], "pods": [], "http_routes": []}
    for pool, mode in (("first", "FailClose"), ("second", "FailOpen")):
        reference = {"name": f"epp-{pool}", "port": {"number": 9002}, "failureMode": mode}
        spec = {"selector": {"matchLabels": {"app": pool}}, "targetPorts": [{"number": port} for port in ports[pool]]}
        made["inference_pools"].append({"metadata": meta(pool), "spec": spec | {"endpointPickerRef": reference}})
        service = {"selector": {"app": f"epp-{pool}"}, "ports": [{"port": 9002, "targetPort": pickers[pool].port}]}
        made["services"].append({"metadata": meta(f"epp-{pool}"), "spec": service})
        made["pods"].append(pod(f"epp-{pool}", "127.0.0.1", {"app": f"epp-{pool}"}, {"name": "epp", "image": "epp"}))
        echo = {"name": "echo", "image": "echo"}
        made["pods"] += [pod(f"{pool}-{at}", it, {"app": pool}, echo) for at, it in enumerate(PODS[pool])]
    rules = [rule("/primary", first=1), rule("/secondary", second=1), rule("/split", first=70, second=30)]
    made["http_routes"].append({"metadata": meta("all"), "spec": {"rules": rules}})
    return made


def rule(path: str, **weights: int) -> dict:
    backends = [{"group": GIE, "kind": "InferencePool", "name": name, "weight": it} for name, it in weights.items()]
    return {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "backendRefs": backends}


@pytest.mark.parametrize(("path", "pool"), [("/primary", "first"), ("/secondary", "second")])
def test_a_request_without_a_body_is_decided(suite: Suite, path: str, pool: str) -> None:
    """HTTPRouteMultipleGatewaysDifferentPools, HTTPRouteMultipleRulesDifferentPools, ...PortValidation."""
    for _ in range(6):
        answer = suite.ask(path)
        assert answer.status == 200
        assert answer.worker in suite.places(pool)
    assert suite.ask("/nowhere").status == 404


@pytest.mark.parametrize("count", [1, 2, 3])
def test_steering_by_address(suite: Suite, count: int) -> None:
    """GatewayFollowingEPPRouting: lists of one, two and three; bodies come through."""
    wanted = PODS["first"][:count]
    served = suite.many(20, "/primary", ",".join(wanted))
    assert {place.partition(":")[0] for place in served} <= set(wanted)
    assert json.loads(suite.ask("/primary", b"hello", **{STEER: wanted[0]}).body)["body"] == "hello"


def test_steering_by_address_and_port(suite: Suite) -> None:
    """GatewayFollowingEPPRoutingWithDataParallelism: each port is an endpoint; a bare address is any of them."""
    address = PODS["first"][0]
    for port in suite.ports["first"]:
        assert set(suite.many(6, "/primary", f"{address}:{port}")) == {f"{address}:{port}"}
    served = suite.many(30, "/primary", address)
    assert set(served) <= {f"{address}:{port}" for port in suite.ports["first"]}
    assert len(served) > 1


def test_the_served_endpoint_is_told(suite: Suite) -> None:
    """GatewayDestinationEndpointServed, InferencePoolAppProtocol: what the gateway says served, as a header."""
    for place in sorted(suite.places("first")):
        answer = suite.ask("/primary", b"{}", **{STEER: place})
        assert (answer.headers[SERVED], answer.worker) == (place, place)


def test_members_of_another_pool_do_not_count(suite: Suite) -> None:
    """GatewayWeightedAcrossTwoInferencePools: both pools' pods are named, each EPP takes its own."""
    both = ",".join(address for pool in PODS for address in PODS[pool])
    served = suite.many(150, "/split", both)
    first = sum(count for place, count in served.items() if place in suite.places("first"))
    assert sum(served.values()) - first == sum(served[place] for place in suite.places("second"))
    assert 70 < first < 140  # of 105 expected: far beyond 4.5 sigma on both sides
    foreign = suite.ask("/primary", b"{}", **{STEER: PODS["second"][0]})
    assert foreign.status == 503
    assert suite.ask("/primary", b"{}").status == 200


def test_a_picker_that_is_gone(suite: Suite) -> None:
    """EppUnAvailableFailOpen, and FailClose, which the suite does not try: what Envoy really does.

    FailOpen saves requests without a body only: one whose body came with its headers ends with 500.
    """
    for pool in PODS:
        suite.kill(pool)
    try:
        assert suite.ask("/primary").status == 500
        assert status(in_one_packet(suite.envoy.port, "/primary", b"{}")) == 500
        opened = suite.ask("/secondary")
        assert opened.status == 200
        assert opened.worker in suite.places("second")
        assert status(in_one_packet(suite.envoy.port, "/secondary", b"{}")) == 500
    finally:
        for pool in PODS:
            suite.start(pool)
    for path, pool in (("/primary", "first"), ("/secondary", "second")):
        assert set(suite.many(6, path)) <= suite.places(pool)


def test_one_gone_leaves_the_other(suite: Suite) -> None:
    """The suite breaks the first EPP's Service while it asks the second: a live EPP keeps answering."""
    suite.kill("first")
    try:
        assert set(suite.many(10, "/secondary", PODS["second"][1])) == {
            f"{PODS['second'][1]}:{suite.ports['second'][0]}"
        }
    finally:
        suite.start("first")
