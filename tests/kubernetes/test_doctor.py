"""`epp doctor` over a whole set-up: silent while all is well; each fault is named with the way to mend it."""

import asyncio
import copy
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from epp.simulate.processes import Picker, Worker, running_picker, running_workers
from tests.kubernetes.cluster import Cluster, running
from tests.small_model import write_small_model
from tests.waiting import free_port

ROUTES = "gateway.networking.k8s.io/v1"
PARENT = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "inference"}
WHEN = "2026-01-01T00:00:00Z"


@dataclass
class World:
    """One worker, one EPP and all that leads to them; a test breaks one thing of it and puts it right again."""

    cluster: Cluster
    worker: Worker
    picker: Picker
    environ: dict[str, str]
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.picker.admin_port}"

    def good_config(self) -> dict[str, object]:
        places = {
            "endpoint": f"tcp://*:{self.worker.events_port}",
            "replay_endpoint": f"tcp://*:{self.worker.replay_port}",
        }
        return {"enable_kv_cache_events": True, **places}

    async def put_worker(self, *args: str, config: dict[str, object] | None = None, **annotations: str) -> None:
        """The pod of the worker with this command line, anew: a pod's own cannot be changed."""
        if config is not None:
            args = (*args, "--kv-events-config", json.dumps(config))
        ports = {"http": self.worker.port, "kv-events": self.worker.events_port, "kv-replay": self.worker.replay_port}
        container = {
            "name": "vllm",
            "image": "vllm",
            "command": ["vllm", "serve", "m"],
            "args": list(args),
            "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        }
        notes = {"epp.events-port": str(ports["kv-events"]), "epp.replay-port": str(ports["kv-replay"])}
        metadata = {"name": "w", "labels": {"app": "vllm"}, "annotations": notes | annotations}
        known = (await self.cluster.call("GET", self.cluster.pods))["items"]
        if any(pod["metadata"]["name"] == "w" for pod in known):
            await self.cluster.delete(f"{self.cluster.pods}/w")
        await self.cluster.create(self.cluster.pods, {"metadata": metadata, "spec": {"containers": [container]}})
        await self.cluster.status("w", "127.0.0.1")

    async def good_worker(self) -> None:
        await self.put_worker("--enable-prompt-tokens-details", "--block-size=16", config=self.good_config())

    async def put(self, path: str, body: dict) -> None:
        """Create or replace one object, and then its status."""
        name = body["metadata"]["name"]
        known = (await self.cluster.call("GET", path))["items"]
        if any(item["metadata"]["name"] == name for item in known):
            await self.cluster.delete(f"{path}/{name}")
        await self.cluster.create(path, body)
        if "status" in body:
            await self.cluster.patch(f"{path}/{name}/status", {"status": body["status"]})

    async def doctor(self, **environ: str) -> tuple[int, list[dict]]:
        """What the command says, as a process of its own."""
        command = [sys.executable, "-m", "epp.cli", "doctor", "--json", "--url", self.url]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=self.environ | environ
        )
        out, err = await process.communicate()
        assert out, err.decode()
        return process.returncode, json.loads(out)


def accepted(status: str = "True", reason: str = "Accepted", kind: str = "Accepted", message: str = "") -> dict:
    """What a gateway writes into the status of a pool or a route."""
    given = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": WHEN}
    return {"parents": [{"parentRef": PARENT, "controllerName": "example.net/gateway", "conditions": [given]}]}


def route(pool: str = "pool", status: dict | None = None) -> dict:
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}
    spec = {"parentRefs": [{"name": "inference"}], "rules": [{"backendRefs": [backend]}]}
    made = {"apiVersion": ROUTES, "kind": "HTTPRoute", "metadata": {"name": "inference"}, "spec": spec}
    return made if status is None else made | {"status": status}


def service(**port: object) -> dict:
    spec = {"selector": {"app": "epp"}, "ports": [{"name": "main", "port": 9002, "appProtocol": "http2"} | port]}
    return {"metadata": {"name": "epp"}, "spec": spec}


def policy(*rules: dict) -> dict:
    spec = {"podSelector": {"matchLabels": {"app": "vllm"}}, "policyTypes": ["Ingress"], "ingress": list(rules)}
    return {"metadata": {"name": "vllm"}, "spec": spec}


SERVING = {"ports": [{"port": "http"}]}
EVENTS = {"from": [{"podSelector": {"matchLabels": {"app": "epp"}}}], "ports": [{"port": "kv-events"}]}


@asynccontextmanager
async def world(cluster: Cluster, folder: Path, crds: list[dict]) -> AsyncIterator[World]:
    await cluster.install(*(crd for crd in crds if crd["metadata"]["name"].startswith("httproutes.")))
    (folder / "model").mkdir()
    model = write_small_model(folder / "model")
    stack = ExitStack()
    try:
        workers = running_workers({"w": ("--tokenizer", str(model))}, folder)
        (worker,) = await asyncio.to_thread(stack.enter_context, workers)
        await cluster.pool(ports=(worker.port,))
        settings = {
            "EPP_POOL_NAME": "pool",
            "EPP_NAMESPACE": cluster.namespace,
            "EPP_TOKENIZER_PATH": str(model),
            "EPP_GRPC_PORT": str(free_port()),
            "KUBECONFIG": str(cluster.server.kubeconfig(folder / "kubeconfig")),
        }
        picker = await asyncio.to_thread(stack.enter_context, running_picker(settings, folder))
        made = World(cluster, worker, picker, {"PATH": "", **settings})
        await mend(made)
        await cluster.pod("epp", "127.0.0.1", labels={"app": "epp"})
        yield made
    finally:
        await asyncio.to_thread(stack.close)


Break = Callable[[World], Awaitable[None]]


def flags(*args: str, **changes: object) -> Break:
    """A worker with other flags; a change of None takes the word out of the configuration of its events."""

    async def put(world: World) -> None:
        wanted = copy.copy(world.good_config()) | changes
        await world.put_worker(*args, config={name: value for name, value in wanted.items() if value is not None})

    return put


async def without_events(world: World) -> None:
    await world.put_worker("--enable-prompt-tokens-details")


async def unheard(world: World) -> None:
    silent = str(free_port())
    config = world.good_config() | {"endpoint": f"tcp://*:{silent}"}
    await world.put_worker("--enable-prompt-tokens-details", config=config, **{"epp.events-port": silent})


def objects(path: str, body: dict) -> Break:
    async def put(world: World) -> None:
        await world.put(path.format(world.cluster.namespace), body)

    return put


def removed(path: str) -> Break:
    async def remove(world: World) -> None:
        await world.cluster.delete(path.format(world.cluster.namespace))

    return remove


async def refused_pool(world: World) -> None:
    status = accepted("False", "InvalidExtensionRef", "ResolvedRefs", "no Service")
    await world.cluster.patch(f"{world.cluster.pools}/pool/status", {"status": status})


async def unready_picker(world: World) -> None:
    await world.cluster.patch(f"{world.cluster.pods}/epp/status", running("127.0.0.1", ready=False))


SERVICES = "/api/v1/namespaces/{}/services"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
HTTP_ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes"
DETAILS = "--enable-prompt-tokens-details"
NOT_ACCEPTED = accepted("False", "NotAllowedByListeners", message="namespace is not allowed")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and what the doctor says of it."""

    name: str
    make: Break
    where: str
    what: str
    fix: str


FAULTS = (
    Fault("no events flag", without_events, "pod w", "it publishes no KV events", "add --kv-events-config '{"),
    Fault(
        "events endpoint connects",
        flags(DETAILS, endpoint="tcp://0.0.0.0:5557"),
        "pod w",
        "endpoint tcp://0.0.0.0:5557 makes vLLM connect where it should bind",
        'write "endpoint": "tcp://*:5557"',
    ),
    Fault(
        "no replay",
        flags(DETAILS, replay_endpoint=None),
        "pod w",
        "it has no replay socket",
        'set "replay_endpoint": "',
    ),
    Fault("no cached tokens in usage", flags(), "pod w", "usage does not tell", f"add {DETAILS}"),
    Fault(
        "block size",
        flags(DETAILS, "--block-size=64"),
        "pod w",
        "its blocks have 64 tokens, ours 16",
        "set EPP_BLOCK_SIZE=64, or the annotation epp.block-size",
    ),
    Fault("nobody publishes", unheard, "worker w", "nothing publishes KV events on port", "--kv-events-config with an"),
    Fault(
        "no network policy",
        removed(POLICIES + "/vllm"),
        "network policies",
        "any pod may listen to w",
        "manifests/components/vllm/networkpolicy.yaml",
    ),
    Fault(
        "a network policy that lets all in",
        objects(POLICIES, policy(SERVING, {"ports": [{"port": "kv-events"}]})),
        "network policies",
        "any pod may listen to w",
        "manifests/components/vllm/networkpolicy.yaml",
    ),
    Fault(
        "route not accepted",
        objects(HTTP_ROUTES, route(status=NOT_ACCEPTED)),
        "HTTPRoute inference",
        "Gateway inference says Accepted=False (NotAllowedByListeners): namespace is not allowed",
        "let the listener's allowedRoutes take routes of this namespace",
    ),
    Fault(
        "route that no gateway saw",
        objects(HTTP_ROUTES, route()),
        "HTTPRoute inference",
        "no gateway has accepted it; its parentRefs name inference",
        "name a Gateway that exists",
    ),
    Fault(
        "route to another pool",
        objects(HTTP_ROUTES, route("other", accepted())),
        "HTTPRoutes",
        "leads to InferencePool pool",
        "kind InferencePool and name pool",
    ),
    Fault(
        "pool not accepted",
        refused_pool,
        "InferencePool pool",
        "Gateway inference says ResolvedRefs=False (InvalidExtensionRef): no Service",
        "make endpointPickerRef name the EPP's Service",
    ),
    Fault("no service", removed(SERVICES + "/epp"), "Service epp", "it does not exist", "manifests/base/service.yaml"),
    Fault(
        "another port", objects(SERVICES, service(port=9003)), "Service epp", "it has no port 9002", "endpointPickerRef"
    ),
    Fault(
        "no HTTP/2",
        objects(SERVICES, service(appProtocol="tcp")),
        "Service epp",
        "says nothing of HTTP/2",
        "appProtocol",
    ),
    Fault("EPP not ready", unready_picker, "Service epp", "no ready pod with app=epp", "kubectl describe pod"),
)


async def mend(world: World) -> None:
    """All as it was."""
    await world.good_worker()
    await world.put(world.cluster.path(ROUTES, "httproutes"), route(status=accepted()))
    await world.put(SERVICES.format(world.cluster.namespace), service())
    await world.put(POLICIES.format(world.cluster.namespace), policy(SERVING, EVENTS))
    await world.cluster.patch(f"{world.cluster.pools}/pool/status", {"status": accepted()})


@pytest.mark.slow
async def test_each_fault_is_named_with_the_way_to_mend_it(cluster: Cluster, tmp_path: Path, upstream_crds: list[dict]):
    async with world(cluster, tmp_path, upstream_crds) as made:
        assert await made.doctor() == (0, []), "all is well"
        for fault in FAULTS:
            await fault.make(made)
            _, findings = await made.doctor()
            assert len(findings) == 1, (fault.name, findings)
            (found,) = findings
            assert found["where"] == fault.where, fault.name
            assert fault.what in found["what"], fault.name
            assert fault.fix in found["fix"], fault.name
            await mend(made)
            await cluster.status("epp", "127.0.0.1")
        await of_the_epp_itself(made)
        assert await made.doctor() == (0, []), "all is well again"


async def of_the_epp_itself(made: World) -> None:
    """Settings and process."""
    code, (found,) = await made.doctor(EPP_TOKENIZER_PATH="/nowhere")
    assert (code, found["where"]) == (1, "EPP_TOKENIZER_PATH")
    assert "/nowhere" in found["what"]
    assert "tokenizer.json" in found["fix"]
    code, (found,) = await made.doctor(EPP_TOKENIZER_PATH="")
    assert (code, found["severity"]) == (0, "warning")
    code, findings = await made.doctor(EPP_BLOCK_SIZE="32")
    assert [found["where"] for found in findings] == ["worker w", "pod w"], "its metrics and its flag"
    assert all("its blocks have 16 tokens, ours 32" in found["what"] for found in findings)
    code, (found,) = await made.doctor(KUBECONFIG="/nowhere")
    assert (code, found["where"]) == (1, "Kubernetes")
    made.url, right = "http://127.0.0.1:1", made.url
    code, (found,) = await made.doctor()
    assert (code, found["where"]) == (1, "epp serve")
    assert "does not answer" in found["what"]
    made.url = right


async def test_what_may_not_be_read_is_said(cluster: Cluster, tmp_path: Path, upstream_crds: list[dict]):
    """With the EPP's own rights the doctor sees pods and pool; it says what it could not look at."""
    from tests.kubernetes.test_rights import grant, token

    async with world(cluster, tmp_path, upstream_crds) as made:
        await grant(cluster)
        limited = cluster.server.kubeconfig(tmp_path / "limited", token=await token(cluster))
        code, findings = await made.doctor(KUBECONFIG=str(limited))
        assert code == 0
        assert {found["severity"] for found in findings} == {"unknown"}
        assert [found["where"] for found in findings] == ["network policies", "HTTPRoutes", "Service epp"]
        assert all("kubeconfig that may read this" in found["fix"] for found in findings)
