"""A gateway's control plane, for tests: an Envoy bootstrap from HTTPRoute, InferencePool, EPP Service and pods.

Covers: hostnames; PathPrefix and Exact matches, methods, the most specific first; an InferencePool as the one backend;
timeouts.request; retry.attempts; a pool's failureMode; the EPP's Service with a named or numbered targetPort, its ready
pods, plain text; 404 for what no rule matches. The pick is read from the header and goes wherever it says, as in Envoy
AI Gateway. Does not cover: weights, Service backends, filters, header and query matches, regular expressions, TLS, h2c.
"""

from collections.abc import Iterable

from epp.settings import BodyMode
from epp.simulate.envoy import EnvoyConfig, bootstrap_config

PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
ASKS = {"typed_per_filter_config": {"picker": {"@type": PER_ROUTE, "overrides": {}}}}
"""Switches the ext_proc filter on for a route."""


def translate(
    routes: Iterable[dict], pools: Iterable[dict], services: Iterable[dict], pods: list[dict], nonce: str
) -> dict:
    """The bootstrap; its listener is `proxy`."""
    by_name = {pool["metadata"]["name"]: pool for pool in pools}
    backends = {service["metadata"]["name"]: service for service in services}
    (pool,) = {
        backend["name"]: by_name[backend["name"]]
        for route in routes
        for rule in route["spec"]["rules"]
        for backend in rule["backendRefs"]
    }.values()
    ref = pool["spec"]["endpointPickerRef"]
    places = picker_places(backends[ref["name"]], ref["port"]["number"], pods)
    config = EnvoyConfig(
        picker_port=places[0][1],
        request_body=BodyMode.FULL_DUPLEX_STREAMED,
        failure_mode_allow=ref.get("failureMode") == "FailOpen",
    )
    made = bootstrap_config(config, nonce)
    picker = next(one for one in made["static_resources"]["clusters"] if one["name"] == "picker")
    picker["load_assignment"]["endpoints"] = [{"lb_endpoints": [_endpoint(*place) for place in places]}]
    manager = made["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["virtual_hosts"] = [_host(route) for route in routes]
    manager["http_filters"][0]["disabled"] = True  # only routes to a pool ask its EPP
    return made


def picker_places(service: dict, port: int, pods: list[dict]) -> list[tuple[str, int]]:
    """Where the EPP's pods listen."""
    (entry,) = [one for one in service["spec"]["ports"] if one["port"] == port]
    selector = service["spec"]["selector"].items()
    places = []
    for pod in pods:
        if selector <= pod["metadata"].get("labels", {}).items():
            declared = {
                one.get("name"): one["containerPort"] for it in pod["spec"]["containers"] for one in it.get("ports", ())
            }
            target = entry.get("targetPort", port)
            places.append((pod["status"]["podIP"], declared.get(target, target)))
    return places


def _host(route: dict) -> dict:
    rules = [(match, rule) for rule in route["spec"]["rules"] for match in rule.get("matches", [{}])]
    rules.sort(key=lambda pair: _rank(pair[0]))
    return {
        "name": route["metadata"]["name"],
        "domains": route["spec"].get("hostnames", ["*"]),
        "routes": [{"match": _match(match), "route": _action(rule)} | ASKS for match, rule in rules],
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


def _action(rule: dict) -> dict:
    action = {"cluster": "workers", "timeout": rule.get("timeouts", {}).get("request", "0s")}
    if "retry" in rule:
        on = "connect-failure,refused-stream,reset,retriable-status-codes"
        codes = rule["retry"].get("codes", [502, 503, 504])
        action["retry_policy"] = {
            "retry_on": on,
            "num_retries": rule["retry"].get("attempts", 1),
            "retriable_status_codes": codes,
        }
    return action


def _endpoint(address: str, port: int) -> dict:
    return {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}}
