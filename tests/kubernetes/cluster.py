"""What a test does as cluster admin: make objects, and write the pod status that a kubelet would write."""

import asyncio
import itertools
import json
import ssl
import time
from functools import partial
from operator import itemgetter
from pathlib import Path

import aiohttp

from tests.kubernetes.apiserver import ApiServer
from tests.waiting import until

_numbers = itertools.count()


class Cluster:
    """The admin's view of one namespace of its own."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.namespace = f"test-{time.time_ns():x}-{next(_numbers)}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Cluster":
        context = ssl.create_default_context(cafile=str(self.server.ca))
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self.server.token}"}, connector=aiohttp.TCPConnector(ssl=context)
        )
        await self.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()
        await asyncio.sleep(0.05)  # TLS says goodbye after close() returns

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def path(self, group_version: str, plural: str) -> str:
        return f"/apis/{group_version}/namespaces/{self.namespace}/{plural}"

    async def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> dict:
        """One API call; an error answer fails the test with what the server said."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind}
        async with self._session.request(method, self.server.url + path, data=data, headers=headers) as answer:
            text = await answer.text()
            assert answer.ok, f"{method} {path}: {answer.status} {text}"
            return json.loads(text)

    async def create(self, path: str, body: dict) -> dict:
        return await self.call("POST", path, body)

    async def patch(self, path: str, body: dict) -> dict:
        return await self.call("PATCH", path, body, "application/merge-patch+json")

    async def delete(self, path: str, *, now: bool = True) -> None:
        await self.call("DELETE", path + ("?gracePeriodSeconds=0" if now else ""))

    async def pod(self, name: str, address: str, *, ready: bool = True, **metadata: dict) -> dict:
        """A running pod with one container on port 8000 and the label app=vllm."""
        pod = {
            "metadata": {"name": name, "labels": {"app": "vllm"}} | metadata,
            "spec": {
                # Without a node, a graceful deletion would remove the pod at once.
                "nodeName": "node-a",
                "containers": [{"name": "vllm", "image": "vllm", "ports": [{"containerPort": 8000}]}],
            },
        }
        await self.create(self.pods, pod)
        return await self.status(name, address, ready=ready)

    async def status(self, name: str, address: str, *, ready: bool = True, restarts: int = 0) -> dict:
        return await self.patch(f"{self.pods}/{name}/status", running(address, ready=ready, restarts=restarts))

    async def pool(self, name: str = "pool", ports: tuple[int, ...] = (8000,), **labels: str) -> dict:
        """An InferencePool of the pods with app=vllm."""
        return await self.create(
            self.path("inference.networking.k8s.io/v1", "inferencepools"), inference_pool(name, ports, **labels)
        )

    @property
    def pools(self) -> str:
        return self.path("inference.networking.k8s.io/v1", "inferencepools")

    async def install(self, *crds: dict) -> None:
        """Install definitions that are not there yet, and wait until they are served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        known = {item["metadata"]["name"] for item in (await self.call("GET", path))["items"]}
        for crd in crds:
            if crd["metadata"]["name"] not in known:
                await self.create(path, crd)
        for crd in crds:
            name = crd["metadata"]["name"]
            while not _established(await self.call("GET", f"{path}/{name}")):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.05)
            await until(partial(self._served, crd))

    async def _served(self, crd: dict) -> bool:
        """Whether discovery tells of all versions of the kind; it lags behind the definition."""
        spec = crd["spec"]
        for version in filter(itemgetter("served"), spec["versions"]):
            path = f"{self.server.url}/apis/{spec['group']}/{version['name']}"
            async with self._session.get(path) as answer:
                resources = (await answer.json())["resources"] if answer.ok else []
                if spec["names"]["plural"] not in {resource["name"] for resource in resources}:
                    return False
        return True


def running(address: str, *, ready: bool = True, restarts: int = 0) -> dict:
    """The status that a kubelet would write."""
    condition = {"status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready"} | condition, {"type": "ContainersReady"} | condition],
            "containerStatuses": [
                {
                    "name": "vllm",
                    "image": "vllm",
                    "imageID": "x",
                    "restartCount": restarts,
                    "ready": ready,
                    "started": True,
                    "state": {"running": {}},
                }
            ],
        }
    }


def inference_pool(name: str, ports: tuple[int, ...] = (8000,), **labels: str) -> dict:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def _established(crd: dict) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def load_crds(directory: Path) -> list[dict]:
    import yaml

    return [crd for path in sorted(directory.glob("*.yaml")) for crd in yaml.safe_load_all(path.read_text()) if crd]
