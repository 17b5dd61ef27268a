"""Group C: the HTTPRoutes that send requests to the pool."""

from collections.abc import Iterator

from epp.readiness.chain import Chain, Ref, UnreadableError, backends_to, place_of
from epp.readiness.checks.conditions import judge
from epp.readiness.checks.sources import GATEWAY_API
from epp.readiness.rule import Group, Problem, check
from epp.readiness.snapshot.gateway_objects import (
    POOL_GROUP,
    Gateway,
    HTTPRoute,
    KindRef,
    Listener,
    ParentRef,
    ParentStatus,
)
from epp.readiness.snapshot.objects import Selector, condition, labels_of, name_of


@check(
    14,
    "route.exists",
    group=Group.ROUTE,
    needs=(4,),
    rule="some HTTPRoute has the InferencePool as a backend",
    source=f"{GATEWAY_API}, HTTPRoute backendRefs",
    fix=f"give a rule a backendRef with group {POOL_GROUP} and kind InferencePool",
)
def exists(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool_ref
    if pool is not None and chain.routes:
        return
    chain.readable(chain.body.sections.http_routes, "HTTPRoutes", "*")
    what = f"InferencePool {pool}" if pool else "any InferencePool"
    yield Problem(f"no HTTPRoute sends traffic to {what}", what)


@check(
    15,
    "route.parent",
    group=Group.ROUTE,
    needs=(7, 14),
    rule="a parentRef of the route is the Gateway, and what it names of it exists",
    source=f"{GATEWAY_API}, ParentReference: an absent namespace is the route's own",
    fix="name the Gateway's namespace, and a sectionName or port that it has",
)
def parent(chain: Chain) -> Iterator[Problem]:
    gateway = chain.gateway
    attached = {name_of(route) for route in chain.attached}
    for route in chain.routes:
        refs = route.spec.parent_refs or ()
        if name_of(route) not in attached and not attached:
            places = ", ".join(str(place_of(ref, route.metadata)) for ref in refs) or "nothing"
            text = f"parentRef of {name_of(route)} resolves to {places}, which is not the Gateway {chain.gateway_ref}"
            yield Problem(text, f"HTTPRoute {name_of(route)}")
        for ref in refs:
            if place_of(ref, route.metadata) == chain.gateway_ref and not _sections(gateway, ref):
                wanted = f"sectionName {ref.section_name}" if ref.section_name else f"port {ref.port}"
                yield Problem(
                    f"{wanted} of {name_of(route)} is no listener of the Gateway", f"HTTPRoute {name_of(route)}"
                )


def _sections(gateway: Gateway, ref: ParentRef) -> list[Listener]:
    """The listeners that a parentRef stands for."""
    return [
        one for one in gateway.spec.listeners if ref.section_name in (None, one.name) and ref.port in (None, one.port)
    ]


@check(
    16,
    "route.admitted",
    group=Group.ROUTE,
    needs=(15,),
    rule="a listener admits routes of that kind and namespace, and has a hostname in common with the route",
    source=f"{GATEWAY_API}, Listener allowedRoutes and hostname",
    fix="set allowedRoutes.namespaces of the listener, or make the hostnames meet",
)
def admitted(chain: Chain) -> Iterator[Problem]:
    gateway = chain.gateway
    for route in chain.attached:
        listeners = [
            one
            for ref in route.spec.parent_refs or ()
            if place_of(ref, route.metadata) == chain.gateway_ref
            for one in _sections(gateway, ref)
        ]
        complaints = [_refusal(chain, one, route) for one in listeners]
        if complaints and all(complaints):
            yield Problem(complaints[0], f"HTTPRoute {name_of(route)}")


def _refusal(chain: Chain, listener: Listener, route: HTTPRoute) -> str:
    """Why the listener does not take the route; empty when it does. Raises UnreadableError."""
    allowed = listener.allowed_routes
    if not _namespace_allowed(chain, allowed.namespaces.from_, allowed.namespaces.selector, route):
        return f"listener {listener.name} does not admit routes from namespace {route.metadata.namespace}"
    kinds = allowed.kinds or (KindRef("HTTPRoute"),)
    if not any(kind.kind == "HTTPRoute" for kind in kinds):
        return f"listener {listener.name} does not admit HTTPRoutes"
    names = route.spec.hostnames or ()
    if listener.hostname and names and not any(hostnames_meet(listener.hostname, name) for name in names):
        return f"no hostname in common: listener {listener.name} has {listener.hostname}, the route {', '.join(names)}"
    return ""


def _namespace_allowed(chain: Chain, from_: str, selector: Selector | None, route: HTTPRoute) -> bool:
    namespace = route.metadata.namespace
    if from_ in ("All", "None"):
        return from_ == "All"
    if from_ == "Same":
        return namespace == chain.gateway_place.namespace
    known = chain.cluster(chain.body.sections.namespaces, "Namespaces")
    labels = next((labels_of(it) for it in known if it.metadata.name == namespace), None)
    if labels is None:
        raise UnreadableError(f"the labels of namespace {namespace} are not known")
    return selector is not None and selector.selects(labels)


def hostnames_meet(one: str, other: str) -> bool:
    """Whether two hostnames, maybe with a wildcard in front, have a name in common."""
    one, other = one.lower(), other.lower()
    if one == other:
        return True
    if one.startswith("*."):
        return other.removeprefix("*").endswith(one[1:]) or (other.startswith("*.") and one.endswith(other[1:]))
    return other.startswith("*.") and one.endswith(other[1:])


def parent_status(chain: Chain, parents: tuple[ParentStatus, ...] | None, namespace: str) -> ParentStatus | None:
    """The entry of a status that speaks of the Gateway, by its own controller. Raises UnreadableError."""
    found = chain.gateway_class
    controller = found.spec.controller_name if found else ""
    entries = [
        entry
        for entry in parents or ()
        if Ref(entry.parent_ref.namespace or namespace, entry.parent_ref.name) == chain.gateway_ref
    ]
    ours = [entry for entry in entries if not controller or entry.controller_name in ("", controller)]
    return next(iter(ours or entries), None)


@check(
    17,
    "route.accepted",
    group=Group.ROUTE,
    needs=(15, 16),
    rule="the Gateway's controller has accepted the route, in the generation it has",
    source=f"{GATEWAY_API}, RouteParentStatus",
    fix="see the reason; with no status at all, see whether the controller runs and the parentRef is right",
)
def accepted(chain: Chain) -> Iterator[Problem]:
    for route in chain.attached:
        name, where = name_of(route), f"HTTPRoute {name_of(route)}"
        status = parent_status(chain, route.status.parents, route.metadata.namespace)
        if status is None:
            yield Problem(f"no controller has reported on {name}; requests get 404", where)
            continue
        yield from judge(
            where,
            f"HTTPRoute {name} not accepted by {chain.gateway_ref}",
            status.conditions,
            "Accepted",
            route.metadata.generation,
            absent=f"no controller has reported on {name}; requests get 404",
        )


@check(
    18,
    "route.resolved",
    group=Group.ROUTE,
    needs=(17, 19, 22),
    rule="the controller has resolved the route's backends",
    source=f"{GATEWAY_API}, RouteParentStatus",
    fix="see the reason: BackendNotFound, RefNotPermitted, InvalidKind (InferencePool support off?)",
)
def resolved(chain: Chain) -> Iterator[Problem]:
    for route in chain.attached:
        name, where = name_of(route), f"HTTPRoute {name_of(route)}"
        status = parent_status(chain, route.status.parents, route.metadata.namespace)
        conditions = status.conditions if status else ()
        yield from judge(
            where,
            f"HTTPRoute {name} backend not resolved",
            conditions,
            "ResolvedRefs",
            route.metadata.generation,
            absent=f"HTTPRoute {name}: nothing is said about ResolvedRefs",
        )
        partial = condition(conditions, "PartiallyInvalid")
        if partial is not None and partial.status == "True":
            yield Problem(f"HTTPRoute {name} is partially invalid: {partial.reason}: {partial.message}", where)


@check(
    19,
    "route.grant",
    group=Group.ROUTE,
    needs=(14,),
    rule="the route may name the pool, and gives it weight",
    source=f"{GATEWAY_API}, ReferenceGrant; BackendRef weight",
    fix="create a ReferenceGrant in the pool's namespace; give the backend a weight over 0",
)
def grant(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool_place
    for route in chain.routes:
        where = f"HTTPRoute {name_of(route)}"
        if all(backend.weight == 0 for backend in backends_to(route, pool)):
            yield Problem("backend weight is 0", where)
        if route.metadata.namespace != pool.namespace and not _granted(chain, route, pool):
            yield Problem(f"route {name_of(route)} needs a ReferenceGrant in {pool.namespace}", where)


def _granted(chain: Chain, route: HTTPRoute, pool: Ref) -> bool:
    grants = chain.objects(chain.body.sections.reference_grants, "ReferenceGrants", pool.namespace)
    return any(
        any(one.kind == "HTTPRoute" and one.namespace == route.metadata.namespace for one in found.spec.from_)
        and any(
            one.group == POOL_GROUP and one.kind == "InferencePool" and one.name in (None, "", pool.name)
            for one in found.spec.to
        )
        for found in grants
    )


CHECKS = (exists, parent, admitted, accepted, resolved, grant)
