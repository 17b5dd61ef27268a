"""Puts a world of tests/readiness into a real API server, status and all, as controllers and kubelets would."""

import json

from epp.readiness.snapshot.kinds import KINDS
from tests.kubernetes.cluster import Cluster
from tests.readiness.world import GATEWAY_API, GIE, World

APIS = {
    "gateway_classes": (f"/apis/{GATEWAY_API}/v1", "gatewayclasses"),
    "gateways": (f"/apis/{GATEWAY_API}/v1", "gateways"),
    "http_routes": (f"/apis/{GATEWAY_API}/v1", "httproutes"),
    "reference_grants": (f"/apis/{GATEWAY_API}/v1", "referencegrants"),
    "inference_pools": (f"/apis/{GIE}/v1", "inferencepools"),
    "services": ("/api/v1", "services"),
    "endpoint_slices": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "deployments": ("/apis/apps/v1", "deployments"),
    "config_maps": ("/api/v1", "configmaps"),
    "pods": ("/api/v1", "pods"),
    "roles": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "role_bindings": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "network_policies": ("/apis/networking.k8s.io/v1", "networkpolicies"),
}
CRDS = ("gatewayclasses", "gateways", "httproutes", "referencegrants")
WITH_STATUS = ("gateway_classes", "gateways", "http_routes", "inference_pools", "deployments", "pods")


def named(world: World, namespace: str) -> World:
    """The world in a namespace of its own: `llm` is `namespace`, `infra` that with `-infra`, `example` the class."""
    text = json.dumps(world)
    for name, own in (("llm", namespace), ("infra", f"{namespace}-infra"), ("example", f"class-{namespace}")):
        text = text.replace(f'"{name}"', f'"{own}"')
    return json.loads(text)


async def install(cluster: Cluster, upstream_crds: list[dict]) -> None:
    names = {f"{plural}.{GATEWAY_API}" for plural in CRDS} | {f"inferencepools.{GIE}"}
    await cluster.install(*(crd for crd in upstream_crds if crd["metadata"]["name"] in names))


async def apply(cluster: Cluster, world: World) -> None:
    """Create everything, then write the status of each."""
    await cluster.create("/api/v1/namespaces", {"metadata": {"name": f"{cluster.namespace}-infra"}})
    labels = {"metadata": {"labels": {"team": "a"}}}
    await cluster.patch(f"/api/v1/namespaces/{cluster.namespace}", labels)
    for section, (root, plural) in APIS.items():
        for item in world.get(section, []):
            await _put(cluster, section, root, plural, item)


async def _put(cluster: Cluster, section: str, root: str, plural: str, item: dict) -> None:
    meta = {key: value for key, value in item["metadata"].items() if key not in ("generation", "creationTimestamp")}
    kind = next(it.name for it in KINDS if it.section == section)
    body = {key: value for key, value in item.items() if key != "status"} | {"metadata": meta}
    body |= {"apiVersion": root.removeprefix("/apis/").removeprefix("/api/"), "kind": kind}
    if section == "deployments":
        labels = {"labels": item["spec"]["selector"]["matchLabels"]}
        template = {"metadata": labels, "spec": {"containers": [{"name": "x", "image": "x"}]}}
        body["spec"] = item["spec"] | {"template": template}
    namespace = meta.get("namespace")
    path = f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
    await cluster.create(path, body)
    if section in WITH_STATUS and item.get("status"):
        status = item["status"]
        if section == "pods":
            for one in status["containerStatuses"]:
                one.update(image="x", imageID="x")
        await cluster.patch(f"{path}/{meta['name']}/status", {"status": status})


async def put_pod(cluster: Cluster, pod: dict) -> None:
    await _put(cluster, "pods", *APIS["pods"], pod)
