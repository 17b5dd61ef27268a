"""Group B: the GatewayClass, the Gateway and its listeners, as their controller reports them."""

from collections.abc import Iterator

from epp.readiness.chain import Chain, parents_at
from epp.readiness.checks.conditions import judge
from epp.readiness.checks.sources import GATEWAY_API
from epp.readiness.rule import Group, NotApplicableError, Problem, check, warning
from epp.readiness.snapshot.gateway_objects import Listener, ListenerStatus
from epp.readiness.snapshot.objects import condition


@check(
    6,
    "gateway.class",
    group=Group.GATEWAY,
    needs=(4,),
    rule="the Gateway's class exists and its controller has accepted it",
    source=f"{GATEWAY_API}, GatewayClass status",
    fix="install the gateway's controller, or name its class in spec.gatewayClassName",
)
def gateway_class(chain: Chain) -> Iterator[Problem]:
    sections, place = chain.body.sections, chain.gateway_ref
    gateway = None if place is None else chain.find(sections.gateways, "Gateways", place)
    if gateway is None:
        raise NotApplicableError(f"there is no Gateway {place or ''} to have a class")
    name = gateway.spec.gateway_class_name
    found = chain.gateway_class
    if found is None:
        yield Problem(f"GatewayClass {name} not found", f"GatewayClass {name}")
        return
    yield from judge(
        f"GatewayClass {name}",
        f"GatewayClass {name} not accepted",
        found.status.conditions,
        "Accepted",
        found.metadata.generation,
        absent=f"GatewayClass {name} not accepted: no controller has answered",
    )


@check(
    7,
    "gateway.accepted",
    group=Group.GATEWAY,
    needs=(6,),
    rule="the Gateway exists and is Accepted, for the generation it has",
    source=f"{GATEWAY_API}, Gateway status",
    fix="create the Gateway, or see what its controller says about it",
)
def accepted(chain: Chain) -> Iterator[Problem]:
    ref = chain.gateway_ref
    if ref is None:
        chain.readable(chain.body.sections.gateways, "Gateways", "*")
        yield Problem("there is no Gateway", "Gateway")
        return
    gateway = chain.find(chain.body.sections.gateways, "Gateways", ref)
    if gateway is None:
        yield Problem(f"Gateway {ref} not found", f"Gateway {ref}")
        return
    yield from judge(
        f"Gateway {ref}",
        f"Gateway {ref} not accepted",
        gateway.status.conditions,
        "Accepted",
        gateway.metadata.generation,
        absent=f"Gateway {ref} not accepted: no controller has answered",
    )


@check(
    8,
    "gateway.programmed",
    group=Group.GATEWAY,
    needs=(7,),
    rule="the Gateway is Programmed, for the generation it has",
    source=f"{GATEWAY_API}, Gateway status",
    fix="see the reason; often the proxy's Deployment or load balancer is not there yet",
)
def programmed(chain: Chain) -> Iterator[Problem]:
    gateway = chain.gateway
    return judge(
        f"Gateway {chain.gateway_ref}",
        f"Gateway {chain.gateway_ref} not programmed",
        gateway.status.conditions,
        "Programmed",
        gateway.metadata.generation,
        absent=f"Gateway {chain.gateway_ref} not programmed: its controller says nothing",
    )


@check(
    9,
    "gateway.address",
    group=Group.GATEWAY,
    needs=(8,),
    rule="the Gateway has an address",
    source=f"{GATEWAY_API}, Gateway status.addresses",
    fix="see the proxy's Service; without load balancers use --no-address",
)
def address(chain: Chain) -> Iterator[Problem]:
    if not any(found.value for found in chain.gateway.status.addresses or ()):
        problem = Problem(f"Gateway {chain.gateway_ref} has no address", f"Gateway {chain.gateway_ref}")
        yield problem if chain.policy.need_address else warning(problem.text, problem.where)


def used_listeners(chain: Chain) -> list[Listener]:
    """The listeners that the pool's routes attach to; all of them when no route names any."""
    refs = [ref for route in chain.routes for ref in parents_at(route, chain.gateway_place)]
    listeners = chain.gateway.spec.listeners
    used = [
        one
        for one in listeners
        if any(ref.section_name in (None, one.name) and ref.port in (None, one.port) for ref in refs)
    ]
    return used or list(listeners)


@check(
    10,
    "gateway.listeners",
    group=Group.GATEWAY,
    needs=(8,),
    rule="each listener in use is Accepted, ResolvedRefs, Programmed, not Conflicted, and takes HTTPRoutes",
    source=f"{GATEWAY_API}, ListenerStatus",
    fix="mend the listener: its port, protocol, hostname or certificate",
)
def listeners(chain: Chain) -> Iterator[Problem]:
    gateway = chain.gateway
    known = {status.name: status for status in gateway.status.listeners or ()}
    for listener in used_listeners(chain):
        status = known.get(listener.name)
        if status is None:
            yield Problem(f"listener {listener.name}: its controller says nothing", f"Gateway {chain.gateway_ref}")
        else:
            yield from _listener(chain, status, gateway.metadata.generation)


def _listener(chain: Chain, status: ListenerStatus, generation: int) -> Iterator[Problem]:
    where = f"Gateway {chain.gateway_ref}"
    name = status.name
    conflicted = condition(status.conditions, "Conflicted")
    if conflicted is not None and conflicted.status == "True":
        yield Problem(f"listener {name}: Conflicted=True ({conflicted.reason})", where)
        return
    for wanted in ("Accepted", "ResolvedRefs", "Programmed"):
        yield from judge(
            where,
            f"listener {name}: {wanted} is not True",
            status.conditions,
            wanted,
            generation,
            absent=f"listener {name}: says nothing about {wanted}",
        )
    if not any(kind.kind == "HTTPRoute" for kind in status.supported_kinds or ()):
        yield Problem(f"listener {name}: does not support HTTPRoute", where)


CHECKS = (gateway_class, accepted, programmed, address, listeners)
