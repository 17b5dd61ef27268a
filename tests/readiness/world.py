"""A healthy chain as the API server shows it, to be broken one fault at a time."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from epp.readiness.chain import Chain
from epp.readiness.find import find
from epp.readiness.policy import Policy
from epp.readiness.snapshot.document import Body, EppStatus, Metadata, Platform, Section, Sections, State
from epp.readiness.snapshot.kinds import KINDS, Scope

NOW = datetime(2026, 12, 1, tzinfo=UTC)
GATEWAY_API = "gateway.networking.k8s.io"
GIE = "inference.networking.k8s.io"
CONTROLLER = "example.com/gateway"

World = dict[str, list[dict]]


def meta(name: str, namespace: str = "", generation: int = 0, **more: object) -> dict:
    made = {"name": name} | ({"namespace": namespace} if namespace else {}) | more
    return made | ({"generation": generation} if generation else {})


def conditions(generation: int, *names: str) -> list[dict]:
    return [
        {
            "type": name,
            "status": "True",
            "reason": name,
            "message": "",
            "observedGeneration": generation,
            "lastTransitionTime": "2026-11-30T00:00:00Z",
        }
        for name in names
    ]


def parents(*, namespace: str | None = "infra", name: str = "gw", controller: str = CONTROLLER) -> dict:
    ref = {"group": GATEWAY_API, "kind": "Gateway", "name": name} | ({"namespace": namespace} if namespace else {})
    made = {"parentRef": ref, "controllerName": controller, "conditions": conditions(1, "Accepted", "ResolvedRefs")}
    return {"parents": [made]}


def definition(plural: str, group: str, *versions: str) -> dict:
    bundle = "v1.5.0" if "inference" in group else "v1.6.3"
    return {
        "metadata": meta(f"{plural}.{group}", annotations={f"{group}/bundle-version": bundle}),
        "spec": {"versions": [{"name": version, "served": True} for version in versions]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    }


def pod(name: str, address: str, labels: dict, container: dict, **spec: object) -> dict:
    return {
        "metadata": meta(name, "llm", labels=labels),
        "spec": {"containers": [container], **spec},
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": container["name"], "ready": True, "restartCount": 0}],
        },
    }


def slice_of(service: str, namespace: str, address: str, ports: list[dict], target: str) -> dict:
    return {
        "metadata": meta(f"{service}-1", namespace, labels={"kubernetes.io/service-name": service}),
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": target}}
        ],
        "ports": ports,
    }


def worker(name: str, address: str) -> dict:
    arguments = ["serve", "meta/llama", "--block-size", "16", "--kv-events-config", '{"enable_kv_cache_events": true}']
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.33.0",
        "command": ["vllm"],
        "args": arguments,
        "ports": [{"containerPort": 8000, "name": "api"}],
    }
    return pod(name, address, {"app": "vllm"}, container)


def picker(name: str, address: str) -> dict:
    container = {
        "name": "epp",
        "image": "epp:0.1.0",
        "args": ["serve"],
        "envFrom": [{"configMapRef": {"name": "epp-settings"}}],
        "env": [{"name": "EPP_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [
            {"name": "grpc", "containerPort": 9002},
            {"name": "health", "containerPort": 9003},
            {"name": "metrics", "containerPort": 9090},
        ],
    }
    return pod(name, address, {"app": "epp"}, container, serviceAccountName="epp")


def healthy() -> World:
    """Gateway infra/gw, route llm/chat, pool llm/pool, two workers, one EPP."""
    return _apis() | _gateway() | _route_and_pool() | _epp() | {"pods": [*_pods()]}


def _apis() -> World:
    return {
        "definitions": [
            *(definition(plural, GATEWAY_API, "v1") for plural in ("gatewayclasses", "gateways", "httproutes")),
            definition("referencegrants", GATEWAY_API, "v1", "v1beta1"),
            definition("inferencepools", GIE, "v1"),
            definition("inferenceobjectives", "inference.networking.x-k8s.io", "v1alpha2")
            | {
                "metadata": meta(
                    "inferenceobjectives.inference.networking.x-k8s.io",
                    annotations={f"{GIE}/bundle-version": "v1.5.0"},
                )
            },
        ],
        "namespaces": [
            {"metadata": meta("llm", labels={"kubernetes.io/metadata.name": "llm", "team": "a"})},
            {"metadata": meta("infra", labels={"kubernetes.io/metadata.name": "infra"})},
        ],
    }


def _gateway() -> World:
    every = conditions(1, "Accepted", "ResolvedRefs", "Programmed")
    return {
        "gateway_classes": [
            {
                "metadata": meta("example", generation=1),
                "spec": {"controllerName": CONTROLLER},
                "status": {"conditions": conditions(1, "Accepted")},
            }
        ],
        "gateways": [
            {
                "metadata": meta("gw", "infra", 1),
                "spec": {
                    "gatewayClassName": "example",
                    "listeners": [
                        {
                            "name": "http",
                            "port": 80,
                            "protocol": "HTTP",
                            "allowedRoutes": {"namespaces": {"from": "All"}},
                        }
                    ],
                },
                "status": {
                    "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
                    "conditions": conditions(1, "Accepted", "Programmed"),
                    "listeners": [
                        {
                            "name": "http",
                            "attachedRoutes": 1,
                            "supportedKinds": [{"group": GATEWAY_API, "kind": "HTTPRoute"}],
                            "conditions": every,
                        }
                    ],
                },
            }
        ],
        "services": [
            {
                "metadata": meta("gw-proxy", "infra", labels={f"{GATEWAY_API}/gateway-name": "gw"}),
                "spec": {
                    "type": "LoadBalancer",
                    "selector": {f"{GATEWAY_API}/gateway-name": "gw"},
                    "loadBalancerSourceRanges": ["10.0.0.0/8"],
                    "ports": [{"port": 80, "name": "http"}],
                },
            },
            {
                "metadata": meta("epp", "llm"),
                "spec": {
                    "selector": {"app": "epp"},
                    "ports": [{"name": "grpc", "port": 9002, "targetPort": "grpc", "appProtocol": "http2"}],
                },
            },
        ],
        "endpoint_slices": [
            slice_of("gw-proxy", "infra", "10.0.1.1", [{"name": "http", "port": 8080}], "proxy"),
            slice_of("epp", "llm", "10.0.2.1", [{"name": "grpc", "port": 9002}], "epp-1"),
        ],
    }


def _route_and_pool() -> World:
    return {
        "http_routes": [
            {
                "metadata": meta("chat", "llm", 1, creationTimestamp="2026-11-01T00:00:00Z"),
                "spec": {
                    "parentRefs": [{"name": "gw", "namespace": "infra"}],
                    "rules": [
                        {
                            "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                            "backendRefs": [{"group": GIE, "kind": "InferencePool", "name": "pool", "port": 8000}],
                            "timeouts": {"request": "300s"},
                        }
                    ],
                },
                "status": parents(),
            }
        ],
        "inference_pools": [
            {
                "metadata": meta("pool", "llm", 1),
                "spec": {
                    "selector": {"matchLabels": {"app": "vllm"}},
                    "targetPorts": [{"number": 8000}],
                    "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
                },
                "status": parents(),
            }
        ],
        "reference_grants": [],
    }


def _epp() -> World:
    verbs = ["get", "list", "watch"]
    return {
        "deployments": [
            {
                "metadata": meta("epp", "llm", 1, labels={"helm.sh/chart": "epp-0.1.0"}),
                "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "epp"}}},
                "status": {
                    "observedGeneration": 1,
                    "replicas": 1,
                    "readyReplicas": 1,
                    "updatedReplicas": 1,
                    "availableReplicas": 1,
                },
            }
        ],
        "config_maps": [
            {
                "metadata": meta("epp-settings", "llm"),
                "data": {
                    "EPP_POOL_NAME": "pool",
                    "EPP_BLOCK_SIZE": "16",
                    "EPP_KV_EVENTS": "true",
                    "EPP_SECURE_SERVING": "true",
                },
            }
        ],
        "roles": [
            {
                "metadata": meta("epp", "llm"),
                "rules": [
                    {"apiGroups": [""], "resources": ["pods"], "verbs": verbs},
                    {"apiGroups": [GIE], "resources": ["inferencepools"], "verbs": verbs},
                ],
            }
        ],
        "role_bindings": [
            {
                "metadata": meta("epp", "llm"),
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "epp"},
                "subjects": [{"kind": "ServiceAccount", "name": "epp", "namespace": "llm"}],
            }
        ],
    }


def _pods() -> Iterator[dict]:
    yield worker("w0", "10.0.3.1")
    yield worker("w1", "10.0.3.2")
    yield picker("epp-1", "10.0.2.1")
    proxy = {"name": "envoy", "image": "envoyproxy/envoy:v1.40", "ports": [{"containerPort": 8080}]}
    made = pod("proxy", "10.0.1.1", {f"{GATEWAY_API}/gateway-name": "gw"}, proxy)
    made["metadata"]["namespace"] = "infra"
    yield made


def body_of(world: World, *, unread: dict[str, State] | None = None, status: EppStatus | None = None) -> Body:
    """The snapshot of a world; kinds in `unread` could not be read."""
    sections: dict[str, Section] = {}
    for kind in KINDS:
        state = (unread or {}).get(kind.section)
        if state is not None:
            sections[kind.section] = Section(state, "" if state is State.ABSENT else "403 forbidden")
            continue
        objects = (msgspec.convert(item, kind.type) for item in world.get(kind.section, []))
        where = ("llm", "infra") if kind.scope is Scope.GIVEN else ("*",)
        sections[kind.section] = Section(State.OK, "", where, tuple(map(kind.keep, objects)))
    taken = Metadata(NOW.isoformat(), "epp test", namespaces=("llm", "infra"))
    platform = Platform(server_version="v1.37.2", api_groups={"resource.k8s.io": ("v1",)}, charts={"epp": "0.1.0"})
    return Body(taken, platform, Sections(**sections), status)


def chain_of(world: World, policy: Policy | None = None, **more) -> Chain:
    """The chain of a world."""
    return find(body_of(world, **more), policy or Policy(), NOW, namespaces=("llm",))


def one(world: World, section: str, name: str) -> dict:
    """An object of the world."""
    (found,) = [item for item in world[section] if item["metadata"]["name"] == name]
    return found


def drop(world: World, section: str, name: str) -> None:
    world[section].remove(one(world, section, name))


def condition_of(item: dict, name: str, status: dict | None = None) -> dict:
    """A condition of an object, of its first parent, or of `status`."""
    status = status or item["status"]
    listed = status["conditions"] if "conditions" in status else status["parents"][0]["conditions"]
    (found,) = [entry for entry in listed if entry["type"] == name]
    return found


def is_ready(item: dict) -> bool:
    """Whether a pod says so."""
    return any(it["type"] == "Ready" and it["status"] == "True" for it in item["status"]["conditions"])
