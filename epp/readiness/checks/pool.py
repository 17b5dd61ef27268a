"""Group D: the InferencePool."""

from collections.abc import Iterator

from epp.readiness.chain import Chain
from epp.readiness.checks.conditions import judge
from epp.readiness.checks.route import parent_status
from epp.readiness.checks.sources import GIE, PROTOCOL
from epp.readiness.rule import Group, Problem, check, warning
from epp.readiness.snapshot.gateway_objects import InferencePool
from epp.readiness.snapshot.objects import name_of

MOST_PORTS = 8
PROTOCOLS = (None, "http", "kubernetes.io/h2c")


@check(
    22,
    "pool.exists",
    group=Group.POOL,
    needs=(4, 14),
    rule="the InferencePool exists, in the API version v1",
    source=GIE,
    fix="create the pool, or name the one that exists in the route's backendRef",
)
def exists(chain: Chain) -> Iterator[Problem]:
    place = chain.pool_place
    if chain.find(chain.body.sections.inference_pools, "InferencePools", place) is None:
        legacy = (found.metadata for found in chain.body.sections.legacy_pools.objects)
        hint = any((found.namespace, found.name) == place for found in legacy)
        text = f"InferencePool {place} not found"
        yield Problem(text + (", only one of the group x-k8s.io" if hint else ""), f"InferencePool {place}")


@check(
    23,
    "pool.spec",
    group=Group.POOL,
    needs=(22,),
    rule="the pool selects by labels, and has 1 to 8 different target ports and a known protocol",
    source=GIE,
    fix="mend spec.selector, spec.targetPorts or spec.appProtocol",
)
def spec(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool
    where = f"InferencePool {name_of(pool)}"
    if not pool.spec.selector.match_labels:
        yield Problem("pool spec invalid: the selector has no labels", where)
    numbers = [port.number for port in pool.spec.target_ports]
    if not 1 <= len(numbers) <= MOST_PORTS or len(set(numbers)) != len(numbers):
        yield Problem(
            f"pool spec invalid: target ports are {numbers}, expected 1 to {MOST_PORTS} different ones", where
        )
    if not all(1 <= number <= 65535 for number in numbers):
        yield Problem(f"pool spec invalid: target ports {numbers} must be from 1 to 65535", where)
    protocols = {pool.spec.app_protocol, *(port.app_protocol for port in pool.spec.target_ports)}
    for unknown in sorted(str(one) for one in protocols if one not in PROTOCOLS):
        yield Problem(f"pool spec invalid: appProtocol {unknown}, expected http or kubernetes.io/h2c", where)


@check(
    24,
    "pool.accepted",
    group=Group.POOL,
    needs=(17, 23, 26),
    rule="the Gateway reports on the pool, and has accepted it in the generation it has",
    source=f"{GIE}, status.parents",
    fix="switch the gateway's Inference Extension support on; see the reason",
)
def accepted(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool
    where = f"InferencePool {name_of(pool)}"
    silent = f"Gateway {chain.gateway_ref} does not report on the pool: GAIE support off?"
    status = parent_status(chain, pool.status.parents, pool.metadata.namespace)
    yield from judge(
        where,
        f"pool not accepted by {chain.gateway_ref}",
        status.conditions if status else None,
        "Accepted",
        pool.metadata.generation,
        absent=silent,
    )


@check(
    25,
    "pool.resolved",
    group=Group.POOL,
    needs=(24, 28, 29),
    rule="the Gateway has resolved the pool's endpoint picker",
    source=f"{GIE}, status.parents",
    fix="see the reason: endpointPickerRef must name a Service of the pool's namespace and a port of it",
)
def resolved(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool
    status = parent_status(chain, pool.status.parents, pool.metadata.namespace)
    yield from judge(
        f"InferencePool {name_of(pool)}",
        "endpointPickerRef cannot be resolved",
        status.conditions if status else None,
        "ResolvedRefs",
        pool.metadata.generation,
        absent="the Gateway says nothing about the pool's ResolvedRefs",
    )


@check(
    26,
    "pool.picker",
    group=Group.POOL,
    needs=(22,),
    rule="the pool names a Service and port as its endpoint picker, with the failure mode that is wanted",
    source=f"{GIE}, endpointPickerRef; {PROTOCOL}",
    fix="set endpointPickerRef: name, port.number, and failureMode",
)
def picker(chain: Chain) -> Iterator[Problem]:
    pool = chain.pool
    where, ref = f"InferencePool {name_of(pool)}", pool.spec.endpoint_picker_ref
    if ref is None:
        yield Problem("pool has no endpoint picker; traffic is not scheduled", where)
        return
    if (ref.group, ref.kind) not in (("", "Service"), ("core", "Service")):
        yield Problem(f"endpointPickerRef is a {ref.kind} of group {ref.group or 'core'}, expected a Service", where)
    elif ref.port is None:
        yield Problem("endpointPickerRef names no port", where)
    wanted = chain.policy.failure_mode
    if wanted is not None and ref.failure_mode != wanted:
        yield Problem(f"failureMode is {ref.failure_mode}, policy wants {wanted}", where)


@check(
    27,
    "pool.alone",
    group=Group.POOL,
    needs=(23,),
    rule="no other pool selects the same pods",
    source=GIE,
    fix="make the selectors disjoint",
    advisory=True,
)
def alone(chain: Chain) -> Iterator[Problem]:
    pool, workers = chain.pool, chain.workers
    for other in chain.objects(chain.body.sections.inference_pools, "InferencePools", pool.metadata.namespace):
        shared = [it.metadata.name for it in workers if other.spec.selector.selects(it.metadata.labels)]
        if shared and other.metadata.name != pool.metadata.name:
            yield _shared(shared, pool, other)


def _shared(pods: list[str], one: InferencePool, other: InferencePool) -> Problem:
    listed = ", ".join(pods[:5]) + (" and others" if len(pods) > len(pods[:5]) else "")
    return warning(
        f"pods {listed} belong to pools {name_of(one)} and {name_of(other)}", f"InferencePool {name_of(one)}"
    )


CHECKS = (exists, spec, accepted, resolved, picker, alone)
