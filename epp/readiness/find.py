"""Finds the chain's links when the user names none: backwards from the pool."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from epp.endpoints.kubernetes.labels import DYNAMO_NAMESPACE
from epp.readiness.chain import Chain, Entry, Ref, backends_to, is_pool, place_of
from epp.readiness.policy import Policy
from epp.readiness.snapshot.document import Body
from epp.readiness.snapshot.objects import Object

MOST_LISTED = 5
"""Of several places to choose from."""


class TargetError(Exception):
    """Which chain is meant cannot be said; the text says what to name."""


def ref(text: str, option: str, namespace: str | None) -> Ref:
    """`namespace/name`, or a name in `namespace`. Raises TargetError."""
    first, slash, name = text.partition("/")
    if slash and first and name and "/" not in name:
        return Ref(first, name)
    if not slash and text and namespace:
        return Ref(namespace, text)
    raise TargetError(f"{option} {text}: expected namespace/name")


def find(
    body: Body,
    policy: Policy,
    now: datetime,
    *,
    namespaces: Sequence[str] = (),
    pool: Ref | None = None,
    gateway: Ref | None = None,
) -> Chain:
    """The chain in a snapshot. Raises TargetError when there are several to choose from."""
    looked = tuple(namespaces) or body.metadata.namespaces
    pool = pool or _pool(body, looked)
    gateway = gateway or _gateway(body, pool)
    entry = _entry(body, pool, looked)
    return Chain(body=body, policy=policy, now=now, entry=entry, pool_ref=pool, gateway_ref=gateway)


def _pool(body: Body, namespaces: Sequence[str]) -> Ref | None:
    """The pool that routes send to, else the only one there is."""
    routed = {
        Ref(backend.namespace or route.metadata.namespace, backend.name)
        for route in body.sections.http_routes.objects
        for rule in route.spec.rules or ()
        for backend in rule.backend_refs or ()
        if is_pool(backend)
    }
    routed = {place for place in routed if place.namespace in namespaces}
    return _only(routed, "--pool", "HTTPRoutes send to several InferencePools") or _only(
        _places(body.sections.inference_pools.objects, namespaces), "--pool", "there are several InferencePools"
    )


def _gateway(body: Body, pool: Ref | None) -> Ref | None:
    """The Gateway that the pool's routes name; if it is none that exists, the one they may have meant.

    Without such a route, those beside the pool tell: one of them was meant to send to it.
    """
    beside = [it for it in body.sections.http_routes.objects if pool and it.metadata.namespace == pool.namespace]
    routes = [it for it in body.sections.http_routes.objects if pool and backends_to(it, pool)] or beside
    named = {
        place for route in routes for it in route.spec.parent_refs or () if (place := place_of(it, route.metadata))
    }
    existing = _places(body.sections.gateways.objects, None)
    if found := _only(named & existing, "--gateway", "the pool's routes name several Gateways"):
        return found
    meant = {place for place in existing if any(place.name == wrong.name for wrong in named)} or existing
    if len(meant) == 1:
        return next(iter(meant))
    return _only(named, "--gateway", "the pool's routes name several Gateways") or _only(
        existing, "--gateway", "there are several Gateways"
    )


def _entry(body: Body, pool: Ref | None, namespaces: Sequence[str]) -> Entry:
    """Dynamo's Frontend schedules where graphs have no EPP and no pool is there for one."""
    graphs = [graph for graph in body.sections.dynamo_graphs.objects if graph.metadata.namespace in namespaces]
    if pool is None:
        return Entry.FRONTEND if graphs and not any("epp" in graph.types() for graph in graphs) else Entry.PLAIN
    found = [item for item in body.sections.inference_pools.objects if _place(item) == pool]
    labels = [it.spec.selector.match_labels or {} for it in found]
    return Entry.OPERATOR if any(DYNAMO_NAMESPACE in given for given in labels) else Entry.PLAIN


def _places(objects: Iterable[Object], namespaces: Sequence[str] | None) -> set[Ref]:
    return {_place(item) for item in objects if namespaces is None or item.metadata.namespace in namespaces}


def _place(item: Object) -> Ref:
    return Ref(item.metadata.namespace, item.metadata.name)


def _only(places: set[Ref], option: str, complaint: str) -> Ref | None:
    if len(places) > 1:
        listed = ", ".join(map(str, sorted(places)[:MOST_LISTED])) + (", ..." if len(places) > MOST_LISTED else "")
        raise TargetError(f"{complaint}: {listed}; choose one by {option}")
    return next(iter(places), None)
