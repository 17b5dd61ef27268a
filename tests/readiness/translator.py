"""A gateway's control plane, for tests: an Envoy bootstrap from HTTPRoutes, InferencePools, EPP Services and pods.

Covers: hostnames; PathPrefix and Exact matches, methods, the most specific first; InferencePools as backends, several
by weight, each asking its own EPP; timeouts.request; retry.attempts and codes; a pool's selector, target ports and
failureMode; the EPP's Service with a named or numbered targetPort, its pods, plain text; 404 for what no rule matches.
Shaped like Istio: the pick is read from the metadata, one that is no endpoint of the pool falls back to round robin,
and the endpoint that served is told to the EPP. Does not cover: Service backends, filters, header and query matches,
regular expressions, ReferenceGrants, listeners, TLS, h2c, status.
"""

from itertools import product

from epp.settings import BodyMode
from epp.simulate.envoy import DESTINATION_HEADER, EnvoyConfig, bootstrap_config
from tests.readiness.world import World, is_ready

TYPE = "type.googleapis.com/envoy.extensions."
ENVOY = "envoy.load_balancing_policies"


def translate(world: World, nonce: str) -> dict:
    """The bootstrap; its listener is `proxy`."""
    pools = world["inference_pools"]
    made = bootstrap_config(EnvoyConfig(picker_port=0, request_body=BodyMode.FULL_DUPLEX_STREAMED), nonce)
    (listener,), (_, picker) = made["static_resources"]["listeners"], made["static_resources"]["clusters"]
    made["static_resources"]["clusters"] = [
        one for pool in pools for one in (_workers(world, pool), picker | _picker(world, pool))
    ]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0]["disabled"] = True  # only routes to a pool ask its EPP
    manager["route_config"]["virtual_hosts"] = [_host(route, pools) for route in world["http_routes"]]
    return made


def _workers(world: World, pool: dict) -> dict:
    """The pool's ready pods at all target ports; which one, the EPP's metadata says."""
    labels = pool["spec"]["selector"]["matchLabels"].items()
    pods = [pod for pod in world["pods"] if labels <= pod["metadata"].get("labels", {}).items() and is_ready(pod)]
    ports = [port["number"] for port in pool["spec"]["targetPorts"]]
    balancing = {
        "override_host_sources": [{"metadata": _key(DESTINATION_HEADER)}],
        "selected_host_key": _key(DESTINATION_HEADER + "-served"),
        "fallback_policy": _policy("round_robin", "RoundRobin", {}),
    }
    places = [(pod["status"]["podIP"], port) for pod, port in product(pods, ports)]
    return {
        "name": pool["metadata"]["name"],
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": _assignment(pool["metadata"]["name"], places),
        "load_balancing_policy": _policy("override_host", "OverrideHost", balancing),
    }


def _key(name: str) -> dict:
    return {"key": "envoy.lb", "path": [{"key": name}]}


def _policy(name: str, kind: str, fields: dict) -> dict:
    typed = {"@type": f"{TYPE}load_balancing_policies.{name}.v3.{kind}"} | fields
    return {"policies": [{"typed_extension_config": {"name": f"{ENVOY}.{name}", "typed_config": typed}}]}


def _picker(world: World, pool: dict) -> dict:
    """Name and endpoints of the cluster of the pool's EPP: the pods behind its Service."""
    reference = pool["spec"]["endpointPickerRef"]
    (service,) = [one for one in world["services"] if one["metadata"]["name"] == reference["name"]]
    (port,) = [one for one in service["spec"]["ports"] if one["port"] == reference["port"]["number"]]
    selector = service["spec"]["selector"].items()
    places = []
    for pod in world["pods"]:
        if selector <= pod["metadata"].get("labels", {}).items():
            declared = (one for container in pod["spec"]["containers"] for one in container.get("ports", ()))
            by_name = {one.get("name"): one["containerPort"] for one in declared}
            target = port.get("targetPort", port["port"])
            places.append((pod["status"]["podIP"], by_name.get(target, target)))
    name = _picker_name(pool)
    return {"name": name, "load_assignment": _assignment(name, places)}


def _picker_name(pool: dict) -> str:
    return f"epp-of-{pool['metadata']['name']}"


def _assignment(name: str, places: list[tuple[str, int]]) -> dict:
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}}
        for address, port in places
    ]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _host(route: dict, pools: list[dict]) -> dict:
    rules = [(match, rule) for rule in route["spec"]["rules"] for match in rule.get("matches", [{}])]
    rules.sort(key=lambda pair: _rank(pair[0]))
    return {
        "name": route["metadata"]["name"],
        "domains": route["spec"].get("hostnames", ["*"]),
        "routes": [{"match": _match(match), "route": _action(rule, pools)} for match, rule in rules],
    }


def _rank(match: dict) -> tuple[bool, int, bool]:
    path = match.get("path", {"type": "PathPrefix", "value": "/"})
    return path["type"] != "Exact", -len(path["value"]), "method" not in match


def _match(match: dict) -> dict:
    path = match.get("path", {"type": "PathPrefix", "value": "/"})
    if path["type"] == "Exact":
        made = {"path": path["value"]}
    else:
        value = path["value"].rstrip("/")
        made = {"path_separated_prefix": value} if value else {"prefix": "/"}
    if "method" in match:
        made["headers"] = [{"name": ":method", "string_match": {"exact": match["method"]}}]
    return made


def _action(rule: dict, pools: list[dict]) -> dict:
    by_name = {pool["metadata"]["name"]: pool for pool in pools}
    backends = [
        {
            "name": backend["name"],
            "weight": backend.get("weight", 1),
            "typed_per_filter_config": {"picker": _asks(by_name[backend["name"]])},
        }
        for backend in rule["backendRefs"]
    ]
    action = {
        "weighted_clusters": {"clusters": backends},
        "timeout": rule.get("timeouts", {}).get("request", "0s"),
    }
    if "retry" in rule:
        action["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
            "num_retries": rule["retry"].get("attempts", 1),
            "retriable_status_codes": rule["retry"].get("codes", [502, 503, 504]),
        }
    return action


def _asks(pool: dict) -> dict:
    """Switches the ext_proc filter on, with the pool's EPP and failure mode."""
    overrides = {
        "grpc_service": {"envoy_grpc": {"cluster_name": _picker_name(pool)}},
        "failure_mode_allow": pool["spec"]["endpointPickerRef"].get("failureMode") == "FailOpen",
    }
    return {"@type": f"{TYPE}filters.http.ext_proc.v3.ExtProcPerRoute", "overrides": overrides}
