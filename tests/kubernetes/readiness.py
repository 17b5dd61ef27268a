"""Puts a world of tests/readiness into a real API server, status and all, as controllers and kubelets would."""

import json

from epp.readiness.snapshot.kinds import KINDS
from tests.kubernetes.cluster import Cluster
from tests.readiness.world import GATEWAY_API, GIE, World

NAMES = {"llm": "{}", "infra": "{}-infra", "gw": "{}-gw", "example": "{}-class", "reader": "{}-reader"}
"""What is called otherwise in each namespace: cluster-wide names, and those that must not be taken for another's."""
CRDS = {f"{plural}.{GATEWAY_API}" for plural in ("gatewayclasses", "gateways", "httproutes", "referencegrants")}
CRDS |= {f"inferencepools.{GIE}", "destinationrules.networking.istio.io"}
MADE_BY_THE_SERVER = ("definitions", "namespaces")
WITH_STATUS = ("gateway_classes", "gateways", "http_routes", "inference_pools", "deployments", "pods")


def named(world: World, namespace: str) -> World:
    """The world in a namespace of its own."""
    text = json.dumps(world).replace(".llm.", f".{namespace}.")
    for name, own in NAMES.items():
        text = text.replace(f'"{name}"', f'"{own.format(namespace)}"')
    renamed: World = json.loads(text)
    return renamed


async def apply(cluster: Cluster, world: World) -> None:
    """Create everything, then write the status of each."""
    infra = f"{cluster.namespace}-infra"
    await cluster.create("/api/v1/namespaces", {"metadata": {"name": infra}})
    for namespace in world["namespaces"]:
        await cluster.patch(f"/api/v1/namespaces/{namespace['metadata']['name']}", namespace)
    for section, objects in world.items():
        if section not in MADE_BY_THE_SERVER:
            for item in objects:
                await put(cluster, section, item)


async def put(cluster: Cluster, section: str, item: dict) -> None:
    """Create one object of a world's section, and write its status."""
    path, body = _to_create(section, item)
    await cluster.create(path, body)
    if section in WITH_STATUS and item.get("status"):
        status = _as_old(item["status"], item["metadata"].get("generation", 1) - 1)
        await cluster.patch(f"{path}/{item['metadata']['name']}/status", {"status": status})


async def remove(cluster: Cluster, world: World) -> None:
    """Remove what snapshots of others would hold too, and what takes one of the server's few cluster addresses."""
    for section in ("gateway_classes", "gateways", "http_routes", "inference_pools", "cluster_roles", "services"):
        for item in world.get(section, []):
            await cluster.delete(f"{_to_create(section, item)[0]}/{item['metadata']['name']}")


def _to_create(section: str, item: dict) -> tuple[str, dict]:
    """The API path of the object's list, and the object as it is before it has a status."""
    kind = next(it for it in KINDS if it.section == section)
    version = kind.versions[0]
    meta = {key: value for key, value in item["metadata"].items() if key not in ("generation", "creationTimestamp")}
    for owner in meta.get("ownerReferences", ()):
        owner.update(apiVersion=f"{GATEWAY_API}/v1", uid="1")
    body = {key: value for key, value in item.items() if key != "status"} | {"metadata": meta}
    body |= {"apiVersion": f"{kind.group}/{version}" if kind.group else version, "kind": kind.name}
    if section == "deployments":
        labels = {"labels": item["spec"]["selector"]["matchLabels"]}
        template = {"metadata": labels, "spec": {"containers": [{"name": "x", "image": "x"}]}}
        body["spec"] = item["spec"] | {"template": template}
    return kind.path(version, meta.get("namespace")), body


def _as_old(status: object, by: int) -> object:
    """The status, for a generation earlier: the server counts those itself, and begins with 1."""
    if isinstance(status, list):
        return [_as_old(one, by) for one in status]
    if not isinstance(status, dict):
        return status
    older = {key: _as_old(value, by) for key, value in status.items()}
    if "observedGeneration" in older:
        older["observedGeneration"] -= by
    for container in older.get("containerStatuses", ()):
        container.update(image="x", imageID="x")
    return older
