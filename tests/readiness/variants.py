"""One fault at a time: what breaks, which check must name it first, and a word of what it must say."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.readiness.world import GATEWAY_API, GIE, World, condition_of, conditions, drop, meta, one, parents

Break = Callable[[World], None]


@dataclass(frozen=True)
class Variant:
    number: int
    says: str
    break_: Break

    @property
    def name(self) -> str:
        return self.break_.__name__


ALL: list[Variant] = []


def broken(number: int, says: str) -> Callable[[Break], Break]:
    def add(break_: Break) -> Break:
        ALL.append(Variant(number, says, break_))
        return break_

    return add


def gateway(world: World) -> dict:
    return one(world, "gateways", "gw")


def route(world: World) -> dict:
    return one(world, "http_routes", "chat")


def pool(world: World) -> dict:
    return one(world, "inference_pools", "pool")


def rule(world: World) -> dict:
    return route(world)["spec"]["rules"][0]


def pods(world: World, *names: str) -> list[dict]:
    return [one(world, "pods", name) for name in names]


def fail(condition: dict, reason: str) -> None:
    condition.update(status="False", reason=reason)


# The platform and its APIs


@broken(4, "CRD inferencepools.inference.networking.k8s.io missing")
def no_pool_definition(world: World) -> None:
    drop(world, "definitions", f"inferencepools.{GIE}")


@broken(4, "legacy InferencePool API only; v1 needed")
def only_the_legacy_pool_definition(world: World) -> None:
    found = one(world, "definitions", f"inferencepools.{GIE}")
    found["metadata"]["name"] = "inferencepools.inference.networking.x-k8s.io"


@broken(4, "not Established")
def definition_not_established(world: World) -> None:
    condition_of(one(world, "definitions", f"httproutes.{GATEWAY_API}"), "Established")["status"] = "False"


@broken(5, "mixed GAIE bundle versions")
def mixed_bundles(world: World) -> None:
    found = one(world, "definitions", "inferenceobjectives.inference.networking.x-k8s.io")
    found["metadata"]["annotations"] = {f"{GIE}/bundle-version": "v1.2.0"}


# The Gateway


@broken(6, "no controller has answered")
def class_without_conditions(world: World) -> None:
    world["gateway_classes"][0]["status"] = {}


@broken(6, "not accepted: InvalidParameters")
def class_not_accepted(world: World) -> None:
    fail(condition_of(world["gateway_classes"][0], "Accepted"), "InvalidParameters")


@broken(6, "GatewayClass example not found")
def class_missing(world: World) -> None:
    world["gateway_classes"].clear()


@broken(7, "Gateway infra/gw not found")
def gateway_missing(world: World) -> None:
    world["gateways"].clear()


@broken(8, "not programmed: AddressNotAssigned")
def gateway_not_programmed(world: World) -> None:
    fail(condition_of(gateway(world), "Programmed"), "AddressNotAssigned")


@broken(7, "stale, Accepted is for generation 1, spec is 2")
def gateway_status_is_stale(world: World) -> None:
    gateway(world)["metadata"]["generation"] = 2


@broken(9, "has no address")
def gateway_without_address(world: World) -> None:
    gateway(world)["status"]["addresses"] = []


@broken(10, "Conflicted=True")
def listener_conflicted(world: World) -> None:
    listed = gateway(world)["status"]["listeners"][0]["conditions"]
    listed.extend(conditions(1, "Conflicted"))


@broken(11, "no ready data-plane endpoint behind Service infra/gw-proxy")
def proxy_not_ready(world: World) -> None:
    one(world, "endpoint_slices", "gw-proxy-1")["endpoints"][0]["conditions"]["ready"] = False


@broken(11, "no ready data-plane endpoint")
def only_the_controller_is_ready(world: World) -> None:
    """Its name begins with that of the proxy: a trap for comparisons by substring."""
    found = one(world, "endpoint_slices", "gw-proxy-1")
    found["metadata"]["labels"]["kubernetes.io/service-name"] = "gw-proxy-controller"


@broken(12, "injected mesh sidecar")
def mesh_sidecar_in_the_proxy(world: World) -> None:
    one(world, "pods", "proxy")["spec"]["containers"].append({"name": "istio-proxy", "image": "istio/proxyv2:1.30"})


# The route


@broken(14, "no HTTPRoute sends traffic to InferencePool llm/pool")
def route_to_a_service(world: World) -> None:
    rule(world)["backendRefs"] = [{"name": "vllm", "port": 8000}]


@broken(15, "resolves to llm/gw, which is not the Gateway infra/gw")
def parent_without_namespace(world: World) -> None:
    del route(world)["spec"]["parentRefs"][0]["namespace"]
    route(world)["status"] = {"parents": []}


@broken(15, "sectionName https of llm/chat is no listener")
def unknown_section(world: World) -> None:
    route(world)["spec"]["parentRefs"][0]["sectionName"] = "https"


@broken(16, "does not admit routes from namespace llm")
def same_namespace_only(world: World) -> None:
    del gateway(world)["spec"]["listeners"][0]["allowedRoutes"]
    fail(condition_of(route(world), "Accepted"), "NotAllowedByListeners")


@broken(16, "does not admit routes from namespace llm")
def namespace_selector_does_not_match(world: World) -> None:
    from_ = {"from": "Selector", "selector": {"matchLabels": {"team": "b"}}}
    gateway(world)["spec"]["listeners"][0]["allowedRoutes"] = {"namespaces": from_}


@broken(16, "no hostname in common")
def disjoint_hostnames(world: World) -> None:
    gateway(world)["spec"]["listeners"][0]["hostname"] = "*.example.com"
    route(world)["spec"]["hostnames"] = ["llm.example.org"]


@broken(17, "no controller has reported on llm/chat; requests get 404")
def route_without_status(world: World) -> None:
    route(world)["status"] = {"parents": []}


@broken(17, "stale")
def route_status_is_stale(world: World) -> None:
    route(world)["metadata"]["generation"] = 2


@broken(18, "backend not resolved: InvalidKind")
def route_not_resolved(world: World) -> None:
    fail(condition_of(route(world), "ResolvedRefs"), "InvalidKind")


@broken(19, "needs a ReferenceGrant in llm")
def crossing_without_grant(world: World) -> None:
    found = route(world)
    found["metadata"]["namespace"] = "infra"
    rule(world)["backendRefs"][0]["namespace"] = "llm"
    fail(condition_of(found, "ResolvedRefs"), "RefNotPermitted")


@broken(19, "backend weight is 0")
def no_weight(world: World) -> None:
    rule(world)["backendRefs"][0]["weight"] = 0


@broken(20, "path /v1/completions is not matched")
def one_path_only(world: World) -> None:
    rule(world)["matches"] = [{"path": {"type": "Exact", "value": "/v1/chat/completions"}}]


@broken(20, "route timeout 10s is shorter than 60s")
def short_timeout(world: World) -> None:
    rule(world)["timeouts"] = {"request": "10s"}


@broken(20, "rewrites the path")
def path_rewritten(world: World) -> None:
    path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/api"}
    rule(world)["filters"] = [{"type": "URLRewrite", "urlRewrite": {"path": path}}]


@broken(21, "requests for /v1/chat/completions are taken by llm/old")
def shadowed(world: World) -> None:
    """An Exact match wins over a prefix."""
    backend = {"name": "vllm", "port": 8000}
    match = {"path": {"type": "Exact", "value": "/v1/chat/completions"}}
    world["http_routes"].append(
        {
            "metadata": meta("old", "llm", 1, creationTimestamp="2026-10-01T00:00:00Z"),
            "spec": route(world)["spec"] | {"rules": [{"matches": [match], "backendRefs": [backend]}]},
            "status": parents(),
        }
    )


# The pool


@broken(22, "InferencePool llm/pool not found, only one of the group x-k8s.io")
def pool_missing(world: World) -> None:
    world["inference_pools"].clear()
    world["legacy_pools"] = [{"metadata": meta("pool", "llm")}]
    fail(condition_of(route(world), "ResolvedRefs"), "BackendNotFound")


@broken(23, "target ports are [8000, 8000]")
def ports_twice(world: World) -> None:
    pool(world)["spec"]["targetPorts"] = [{"number": 8000}, {"number": 8000}]


@broken(24, "GAIE support off?")
def gateway_ignores_pools(world: World) -> None:
    pool(world)["status"] = {}


@broken(24, "pool not accepted by infra/gw: NotSupportedByParent")
def pool_not_accepted(world: World) -> None:
    fail(condition_of(pool(world), "Accepted"), "NotSupportedByParent")


@broken(25, "endpointPickerRef cannot be resolved: InvalidExtensionRef")
def picker_not_resolved(world: World) -> None:
    fail(condition_of(pool(world), "ResolvedRefs"), "InvalidExtensionRef")


@broken(26, "pool has no endpoint picker; traffic is not scheduled")
def pool_without_picker(world: World) -> None:
    del pool(world)["spec"]["endpointPickerRef"]
    fail(condition_of(pool(world), "Accepted"), "EndpointPickerRefMissing")


# The EPP


@broken(28, "EPP Service llm/epp not found")
def picker_service_missing(world: World) -> None:
    drop(world, "services", "epp")
    fail(condition_of(pool(world), "ResolvedRefs"), "InvalidExtensionRef")


@broken(28, "is an ExternalName")
def external_picker(world: World) -> None:
    one(world, "services", "epp")["spec"] = {"type": "ExternalName", "externalName": "epp.example.org"}


@broken(29, "EPP Service has no port 9002")
def picker_port_wrong(world: World) -> None:
    one(world, "services", "epp")["spec"]["ports"][0]["port"] = 9003


@broken(30, "EPP Service llm/epp has no ready endpoint")
def picker_without_endpoints(world: World) -> None:
    one(world, "endpoint_slices", "epp-1")["endpoints"] = []


@broken(31, "EPP not available 0/1")
def picker_not_available(world: World) -> None:
    one(world, "deployments", "epp")["status"]["availableReplicas"] = 0


@broken(31, "2 EPP replicas without leader election: KV state is split")
def two_light_pickers(world: World) -> None:
    (found,) = pods(world, "epp-1")
    container = found["spec"]["containers"][0]
    del container["envFrom"]
    container["args"] = ["--pool-name", "pool", "--pool-namespace", "llm"]
    world["pods"].append(found | {"metadata": meta("epp-2", "llm", labels={"app": "epp"})})
    deployment = one(world, "deployments", "epp")
    deployment["spec"]["replicas"] = 2
    deployment["status"].update(replicas=2, readyReplicas=2, updatedReplicas=2, availableReplicas=2)


@broken(32, "EPP serves pool llm/other, route uses llm/pool")
def picker_of_another_pool(world: World) -> None:
    world["config_maps"][0]["data"]["EPP_POOL_NAME"] = "other"


@broken(32, "has no port named grpc-ext-proc")
def picker_target_port_missing(world: World) -> None:
    one(world, "services", "epp")["spec"]["ports"][0]["targetPort"] = "grpc-ext-proc"


@broken(33, "EPP service account may not get/list/watch pods")
def picker_without_rights(world: World) -> None:
    one(world, "roles", "epp")["rules"].pop(0)


@broken(33, "may not watch inferencepools")
def picker_may_not_watch(world: World) -> None:
    one(world, "roles", "epp")["rules"][1]["verbs"] = ["get", "list"]


@broken(35, "EPP speaks plain text, gateway expects TLS")
def picker_in_plain_text(world: World) -> None:
    of_controller(world, "agentgateway.dev/agentgateway")
    world["config_maps"][0]["data"]["EPP_SECURE_SERVING"] = "false"


@broken(35, "EPP speaks TLS, gateway expects plain text")
def istio_without_destination_rule(world: World) -> None:
    of_controller(world, "istio.io/gateway-controller")


def of_controller(world: World, name: str) -> None:
    """Another gateway's controller in all places."""
    world["gateway_classes"][0]["spec"]["controllerName"] = name
    for item in (route(world), pool(world)):
        item["status"]["parents"][0]["controllerName"] = name


# The workers


@broken(41, "pool selector app=sglang matches 0 pods, 0 ready")
def selector_matches_nothing(world: World) -> None:
    pool(world)["spec"]["selector"]["matchLabels"] = {"app": "sglang"}


@broken(41, "matches 2 pods, 0 ready")
def no_worker_ready(world: World) -> None:
    for found in pods(world, "w0", "w1"):
        condition_of(found, "Ready")["status"] = "False"


@broken(42, "pod llm/w1: nothing listens on target port 8000")
def target_port_not_exposed(world: World) -> None:
    (found,) = pods(world, "w1")
    found["spec"]["containers"][0]["ports"][0]["containerPort"] = 8080


@broken(43, "sidecar of llm/w0 routes by itself (kv); the EPP decision is ignored")
def sidecar_routes_itself(world: World) -> None:
    dynamo_workers(world)
    world["pods"][0]["spec"]["containers"][1]["args"] = ["--router-mode", "kv"]


def dynamo_workers(world: World) -> None:
    """Workers as Dynamo's operator runs them."""
    labels = {"nvidia.com/dynamo-namespace": "llm-graph", "nvidia.com/dynamo-component-class": "worker"}
    pool(world)["spec"]["selector"]["matchLabels"] = labels
    for found in pods(world, "w0", "w1"):
        found["metadata"]["labels"] = labels | {"nvidia.com/dynamo-component-type": "worker"}
        found["spec"]["containers"][0]["ports"] = []
        sidecar = {
            "name": "frontend",
            "image": "dynamo-frontend:1.6.1",
            "command": ["python3", "-m", "dynamo.frontend"],
            "args": ["--router-mode", "direct"],
            "ports": [{"name": "http", "containerPort": 8000}],
        }
        found["spec"]["containers"].append(sidecar)
        found["status"]["containerStatuses"].append({"name": "frontend", "ready": True, "restartCount": 0})


@broken(45, "pod llm/epp-1 (EPP) must not be in the pool")
def selector_too_wide(world: World) -> None:
    pool(world)["spec"]["selector"]["matchLabels"] = {"tier": "llm"}
    for found in pods(world, "w0", "w1", "epp-1"):
        found["metadata"]["labels"]["tier"] = "llm"
    one(world, "pods", "epp-1")["spec"]["containers"][0]["ports"].append({"containerPort": 8000})


@broken(46, "block size 16 in EPP, 32 in llm/w0: prefix hits never match")
def other_block_size(world: World) -> None:
    arguments = world["pods"][0]["spec"]["containers"][0]["args"]
    arguments[arguments.index("16")] = "32"


@broken(46, "KV events are not switched on")
def events_off(world: World) -> None:
    world["pods"][1]["spec"]["containers"][0]["args"][-1] = '{"enable_kv_cache_events": false}'


@broken(47, "event plane differs: EPP zmq, worker nats")
def other_event_plane(world: World) -> None:
    for name, plane in (("epp-1", "zmq"), ("w0", "nats")):
        env = one(world, "pods", name)["spec"]["containers"][0].setdefault("env", [])
        env.append({"name": "DYN_EVENT_PLANE", "value": plane})


@broken(48, "cannot reach llm/w0:8000, by NetworkPolicy deny")
def policy_in_the_way(world: World) -> None:
    ingress = [{"from": [{"podSelector": {"matchLabels": {"app": "epp"}}}]}]
    selector = {"matchLabels": {"app": "vllm"}}
    world["network_policies"] = [
        {
            "metadata": meta("deny", "llm"),
            "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
        }
    ]
