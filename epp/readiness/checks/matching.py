"""Group C, second half: whether requests for the API's paths reach the pool, and with which timeout."""

import re
from collections.abc import Iterator

from epp.readiness.chain import Chain, Ref, is_pool, parents_at
from epp.readiness.checks.route import hostnames_meet
from epp.readiness.checks.sources import GATEWAY_API
from epp.readiness.rule import Group, Problem, check, warning
from epp.readiness.snapshot.gateway_objects import HTTPRoute, RouteMatch, RouteRule
from epp.readiness.snapshot.objects import name_of

_DURATION = re.compile(r"(\d+)(ms|h|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def seconds(duration: str) -> float:
    """A Gateway API duration (GEP-2257), as 1m30s; 0 means no timeout."""
    return sum(int(number) * _UNITS[unit] for number, unit in _DURATION.findall(duration))


@check(
    20,
    "route.paths",
    group=Group.ROUTE,
    needs=(14,),
    rule="the rules match the API's paths, leave them as they are, and leave generations time",
    source=f"{GATEWAY_API}, HTTPRouteRule",
    fix="match PathPrefix / (or /v1), drop path rewrites, set timeouts.request to minutes",
)
def paths(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool_place
    rules = [(route, rule) for route in chain.routes for rule in route.spec.rules or () if _sends(route, rule, pool)]
    for path in chain.policy.paths:
        if not any(_priority(rule, path) for _, rule in rules):
            yield Problem(f"path {path} is not matched", f"HTTPRoute {name_of(rules[0][0])}")
    for route, rule in rules:
        yield from _of_rule(chain, route, rule)


def _of_rule(chain: Chain, route: HTTPRoute, rule: RouteRule) -> Iterator[Problem]:
    where = f"HTTPRoute {name_of(route)}"
    for name, text in _timeouts(rule):
        if 0 < seconds(text) < chain.policy.min_request_seconds:
            least = f"{chain.policy.min_request_seconds:g}s"
            yield Problem(f"route timeout {text} is shorter than {least} (timeouts.{name})", where)
    for found in rule.filters or ():
        if found.url_rewrite is not None and found.url_rewrite.path is not None:
            yield Problem("a filter rewrites the path, which tells the EPP and the worker which API is meant", where)
        elif found.type in ("CORS", "ExtensionRef"):
            text = f"filter {found.type}: with Istio, a CORS or fault filter on the rule switches the EPP off"
            yield warning(text, where)
    pool = chain.find(chain.body.sections.inference_pools, "InferencePools", chain.pool_place)
    ports = {port.number for port in pool.spec.target_ports} if pool else set()
    for backend in rule.backend_refs or ():
        if is_pool(backend) and backend.port is not None and ports and backend.port not in ports:
            yield warning(f"backend port {backend.port} is no target port of the pool; gateways ignore it", where)


def _timeouts(rule: RouteRule) -> Iterator[tuple[str, str]]:
    if rule.timeouts is not None:
        for name, text in (("request", rule.timeouts.request), ("backendRequest", rule.timeouts.backend_request)):
            if text:
                yield name, text


@check(
    21,
    "route.not-shadowed",
    group=Group.ROUTE,
    needs=(15, 16),
    rule="no other route of the Gateway takes the API's paths away",
    source=f"{GATEWAY_API}, precedence: most specific match first, then the oldest route",
    fix="make the other route's match narrower, or give it another hostname",
)
def not_shadowed(chain: Chain) -> Iterator[Problem]:
    pool, gateway = chain.pool_place, chain.gateway_place
    chain.readable(chain.body.sections.http_routes, "HTTPRoutes", "*")
    others = [route for route in chain.body.sections.http_routes.objects if parents_at(route, gateway)]
    for path in chain.policy.paths:
        ours = [found for route in chain.attached for found in _candidates(route, path, pool, ours=True)]
        best = min(ours, default=None)
        for route in others:
            for found in _candidates(route, path, pool, ours=False):
                if best is not None and found < best and any(_same_hosts(route, mine) for mine in chain.attached):
                    yield Problem(f"requests for {path} are taken by {name_of(route)}", f"HTTPRoute {name_of(route)}")
                    break


_Rank = tuple[int, int, int, int, str, str]


def _candidates(route: HTTPRoute, path: str, pool: Ref, *, ours: bool) -> Iterator[_Rank]:
    """The ranks of a route's rules that match the path, best first when sorted.

    Matches that also look at headers or parameters take only part of the requests, so they do not count.
    """
    for rule in route.spec.rules or ():
        if _sends(route, rule, pool) == ours and (priority := _priority(rule, path)):
            kind, length, method = priority
            yield kind, length, method, 0, route.metadata.creation_timestamp or "", name_of(route)


def _sends(route: HTTPRoute, rule: RouteRule, pool: Ref) -> bool:
    return any(
        is_pool(backend) and Ref(backend.namespace or route.metadata.namespace, backend.name) == pool
        for backend in rule.backend_refs or ()
    )


def _priority(rule: RouteRule, path: str) -> tuple[int, int, int] | None:
    """How a rule ranks for a path, less is better; None when it does not match every request for it."""
    ranks = [rank for one in rule.matches or (RouteMatch(),) if (rank := _rank(one, path))]
    return min(ranks, default=None)


def _rank(match: RouteMatch, path: str) -> tuple[int, int, int] | None:
    if match.headers or match.query_params or match.method not in (None, "GET" if path == "/v1/models" else "POST"):
        return None
    kind, value = match.path.type, match.path.value
    by_method = 0 if match.method else 1
    if kind == "Exact":
        return (0, 0, by_method) if value == path else None
    if kind == "RegularExpression":
        return (1, -len(value), by_method) if _matches(value, path) else None
    prefix = value.rstrip("/")
    return (2, -len(prefix), by_method) if path == prefix or path.startswith(prefix + "/") else None


def _matches(expression: str, path: str) -> bool:
    """By the literal parts alone: an expression of a stranger is not run."""
    literal = re.match(r"\^?([\w/.-]*)", expression)
    return literal is not None and path.startswith(literal.group(1).rstrip("."))


def _same_hosts(one: HTTPRoute, other: HTTPRoute) -> bool:
    """Whether some request may match the hostnames of both; a more specific name of ours wins anyway."""
    left, right = one.spec.hostnames or (), other.spec.hostnames or ()
    if not left:
        return not right
    return not right or any(hostnames_meet(a, b) for a in left for b in right)


CHECKS = (paths, not_shadowed)
