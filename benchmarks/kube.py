"""Following 1,000 pods: our watch against the official client's typed models, from the same server.

`kube_event`: CPU per pod event, from the bytes to the changed pool. `kube_list_1000`: wall time from the request to a
pool of 1,000 endpoints. `kube_gone_delay`: 99th percentile from the sending of an event that makes a pod unready or
tells that it is deleted, to the pool that no pick takes it from, among storms of other events and a busy event loop.
"""

import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import yaml
from aiohttp import web
from prometheus_client import CollectorRegistry

from benchmarks.report import report
from epp.endpoints.discovery import Discovery
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.pool import Pool
from epp.settings import EndpointsSettings

PODS = 1000
EVENTS = 5000
LEAVING = 400
"""The first pods leave, one every SPACING_SECONDS, beginning LEAD_SECONDS after the list; with every STORM_EVERYth,
STORM others change twice just before."""
SPACING_SECONDS = 0.01
LEAD_SECONDS = 3.0
STORM_EVERY = 20
STORM = 50
LAST = PODS
"""A pod of its own in the last event, which tells that all were taken in."""
PAD_BYTES = 2600
"""Of annotations, so that a pod takes the 4.3 KB that real ones do."""
PATH = "/api/v1/namespaces/default/pods"
FIRST = web.AppKey("first", list[float])
"""The clock when the first pod leaves."""


def pod(number: int, *, ready: bool = True, version: int = 1, leaves: float = math.inf) -> dict:
    """A running pod as a kubelet reports it; `leaves` is the clock when its end will be told."""
    name, ip = f"vllm-7f9c6d5b8-{number:05d}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"5f0c7e3e-9a6f-4b1e-8a57-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app": "vllm",
                "pod-template-hash": "7f9c6d5b8",
                "llm-d.ai/role": "both",
                "leaving": "yes",
                "leaves": str(leaves),
            },
            "annotations": {"pad": "x" * PAD_BYTES},
        },
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.27.1",
                    "args": ["--model=m", "--block-size=16"],
                    "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
                }
            ],
            "nodeName": "node-a",
            "restartPolicy": "Always",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": str(ready or kind[0] != "R"), **times} for kind in kinds],
            "hostIP": "192.168.0.1",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [
                {
                    "name": "vllm",
                    "image": "vllm",
                    "imageID": "x",
                    "ready": ready,
                    "restartCount": 0,
                    "started": True,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
            ],
        },
    }


def line(number: int, kind: str = "MODIFIED", **state: object) -> bytes:
    return json.dumps({"type": kind, "object": pod(number, **state)}).encode() + b"\n"


def storm(pods: range, times: int) -> list[bytes]:
    """All `pods` turn not ready and ready again, so many times."""
    return [line(i, ready=j % 2 == 1, version=2 + j) for j in range(times) for i in pods]


async def answer(request: web.Request) -> web.StreamResponse:
    """A list in pages, or a watch: a storm, and a pod more; or pods that leave at the moment that their label tells."""
    if "watch" not in request.query:
        begin = int(request.query.get("continue", 0))
        end = min(PODS, begin + int(request.query.get("limit", PODS)))
        if not begin:
            request.app[FIRST][:] = [time.monotonic() + LEAD_SECONDS]
        items = [pod(i, leaves=request.app[FIRST][0] + i * SPACING_SECONDS) for i in range(begin, end)]
        meta = {"resourceVersion": "1"} | ({"continue": str(end)} if end < PODS else {})
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items})
    response = web.StreamResponse()
    await response.prepare(request)
    if "leaving" in request.query["labelSelector"]:
        await leave(response, request.app[FIRST][0])
    else:
        await response.write(b"".join([*storm(range(PODS), EVENTS // PODS)[:-1], line(LAST)]))
    await asyncio.sleep(600)
    return response


async def leave(response: web.StreamResponse, first: float) -> None:
    others = b"".join(storm(range(LEAVING, LEAVING + STORM), 2))
    ends = [line(i, "DELETED") if i % 2 else line(i, ready=False) for i in range(LEAVING)]
    for i, end in enumerate(ends):
        await asyncio.sleep(first + i * SPACING_SECONDS - time.monotonic())
        await response.write((others if i % STORM_EVERY == 0 else b"") + end)


async def serve() -> None:
    application = web.Application()
    application[FIRST] = [0.0]
    application.router.add_get(PATH, answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def server() -> Iterator[str]:
    """A kubeconfig for a running server."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.kube", "--serve"], stdout=subprocess.PIPE, text=True)
    with process, tempfile.TemporaryDirectory() as folder:
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "c", "user": {"token": "t"}}],
        }
        path = Path(folder) / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        try:
            yield str(path)
        finally:
            process.kill()


@asynccontextmanager
async def following(kubeconfig: str, selector: str) -> AsyncIterator[Pool]:
    pool = Pool()
    settings = EndpointsSettings(pod_selector=selector, target_ports="8000", namespace="default")
    discovery = Discovery(settings, pool, CollectorRegistry(), KubernetesClient(kubeconfig))
    await discovery.start()
    yield pool
    await discovery.stop()


async def until(condition: Callable[[], bool], pause: float = 0.001) -> None:
    while not condition():  # noqa: ASYNC110 - the pool tells nobody that it is full
        await asyncio.sleep(pause)


async def ours(kubeconfig: str) -> tuple[float, float]:
    """Seconds until 1,000 endpoints, and CPU seconds per event."""
    begun = time.perf_counter()
    async with following(kubeconfig, "app=vllm") as pool:
        await until(lambda: len(pool.snapshot().endpoints) >= PODS, 0)
        listed, cpu = time.perf_counter() - begun, time.process_time()
        last = pod(LAST)["status"]["podIP"] + ":8000"
        await until(lambda: last in pool.snapshot().position)
        return listed, (time.process_time() - cpu) / EVENTS


async def typed(kubeconfig: str) -> tuple[float, float]:
    """The same by the client's models: seconds until the list is decoded, CPU seconds per event."""
    from kubernetes.aio import client, config, watch

    await config.load_kube_config(kubeconfig)
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        begun = time.perf_counter()
        pods = await core.list_namespaced_pod("default", label_selector="app=vllm")
        listed, cpu, count = time.perf_counter() - begun, time.process_time(), 0
        assert len(pods.items) == PODS
        watching = watch.Watch()
        async for event in watching.stream(core.list_namespaced_pod, "default", label_selector="app=vllm"):
            assert event["object"].status.pod_ip
            count += 1
            if count == EVENTS:
                break
        return listed, (time.process_time() - cpu) / EVENTS


async def delays(kubeconfig: str) -> float:
    """Milliseconds, 99th percentile, from the sending of a pod's end to the pool without it."""
    seen: list[float] = []
    async with following(kubeconfig, "app=vllm,leaving=yes") as pool:
        await until(lambda: len(pool.snapshot().endpoints) >= PODS, 0)
        pool.on_leave(lambda _column, endpoint: seen.append(time.monotonic() - float(endpoint.labels["leaves"])))
        traffic = asyncio.create_task(busy())
        await asyncio.sleep(LEAD_SECONDS + LEAVING * SPACING_SECONDS + 0.5)
        traffic.cancel()
    ends = [delay for delay in seen if delay >= 0]  # those of the storms leave before their time, and come back
    assert len(ends) == LEAVING, len(ends)
    return float(np.percentile(ends, 99)) * 1e3


async def busy(share: float = 0.5, piece: float = 0.001) -> None:
    """Half of the event loop goes into requests."""
    while True:
        begun = time.perf_counter()
        while time.perf_counter() - begun < piece * share:
            pass
        await asyncio.sleep(piece * (1 - share))


def main(rows: list[str]) -> None:
    with server() as kubeconfig:
        if {"kube_event", "kube_list_1000"} & set(rows):
            typed_list, typed_cpu = asyncio.run(typed(kubeconfig))
            our_list, our_cpu = min(asyncio.run(ours(kubeconfig)) for _ in range(3))
            report("kube_event", our_cpu * 1e6, "us", typed_cpu * 1e6)
            report("kube_list_1000", our_list * 1e3, "ms", typed_list * 1e3)
        if "kube_gone_delay" in rows:
            report("kube_gone_delay", asyncio.run(delays(kubeconfig)), "ms")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(serve())
    else:
        main(sys.argv[1:] or ["kube_event", "kube_list_1000", "kube_gone_delay"])
