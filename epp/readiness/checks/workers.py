"""Group F: the pods of the pool and their sidecars."""

from collections.abc import Iterator

from epp.endpoints.endpoint import host_port
from epp.endpoints.kubernetes.labels import ACTIVE_PORTS, DYNAMO_CLASS, DYNAMO_NAMESPACE, DYNAMO_PORT_NAME, DYNAMO_TYPE
from epp.readiness.chain import Chain, Entry
from epp.readiness.checks.sources import DYNAMO, GIE, OWN, observed
from epp.readiness.rule import Group, NotApplicableError, Problem, check, warning
from epp.readiness.snapshot.core_objects import Container, Pod
from epp.readiness.snapshot.objects import annotations_of, labels_of, name_of
from epp.readiness.words import container_with_port, first_of, flags_of, settings_of

STRANGERS = ("epp", "frontend", "planner")
"""Component types of Dynamo that serve no model themselves."""


@check(
    41,
    "workers.ready",
    group=Group.WORKERS,
    needs=(23,),
    rule="the pool selects enough pods that are Running, Ready and have an address",
    source=f"{GIE}, spec.selector",
    fix="compare the selector with the pods' labels; see why pods are not ready",
)
def ready(chain: Chain) -> Iterator[Problem]:
    pool, workers, serving = chain.pool, chain.workers, chain.ready_workers
    if len(serving) < chain.policy.min_ready:
        labels = ",".join(f"{key}={value}" for key, value in (pool.spec.selector.match_labels or {}).items())
        text = f"pool selector {labels} matches {len(workers)} pods, {len(serving)} ready"
        yield Problem(text, f"InferencePool {name_of(pool)}")


def ports_of(chain: Chain, pod: Pod) -> list[int]:
    """The target ports that serve on a pod; those of Dynamo's workers are the sidecar's."""
    ports = chain.target_ports
    active = annotations_of(pod).get(ACTIVE_PORTS)
    if active is None:
        return ports
    named = {part.strip() for part in active.split(",")}
    return [port for port in ports if str(port) in named]


@check(
    42,
    "workers.ports",
    group=Group.WORKERS,
    needs=(41,),
    rule="every ready pod has a ready container that declares each target port",
    source=f"{GIE}, spec.targetPorts; annotation {ACTIVE_PORTS}",
    fix="make the engine or sidecar listen there, and declare the port; or change spec.targetPorts",
)
def ports(chain: Chain) -> Iterator[Problem]:
    for pod in chain.ready_workers:
        declared = [port for it in pod.spec.containers for port in it.ports or ()]
        declared += [port for it in pod.spec.init_containers or () for port in it.ports or ()]
        for port in ports_of(chain, pod):
            yield from _port(pod, port, any_declared=bool(declared))


def _port(pod: Pod, port: int, *, any_declared: bool) -> Iterator[Problem]:
    name = name_of(pod)
    owner = container_with_port(pod, port)
    if owner is None and any_declared:
        yield Problem(
            f"pod {name}: nothing listens on target port {port}, by what its containers declare", f"Pod {name}"
        )
    elif owner is None:
        yield warning(f"pod {name} declares no ports; whether {port} is served, --probe tells", f"Pod {name}")
    else:
        statuses = (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
        ready_by_name = {status.name: status.ready for status in statuses}
        if ready_by_name.get(owner.name) is False:
            yield Problem(f"pod {name}: container {owner.name} with target port {port} is not ready", f"Pod {name}")


def _sidecar(pod: Pod) -> Container | None:
    """The container of a Dynamo worker that takes requests."""
    containers = (*pod.spec.containers, *(pod.spec.init_containers or ()))
    return next((it for it in containers if any(port.name == DYNAMO_PORT_NAME for port in it.ports or ())), None)


def _dynamo(chain: Chain) -> list[Pod]:
    """Ready workers that Dynamo's operator runs."""
    if chain.entry is not Entry.OPERATOR:
        raise NotApplicableError("plain workers, without a sidecar that could route")
    return [pod for pod in chain.ready_workers if DYNAMO_NAMESPACE in labels_of(pod)]


@check(
    43,
    "workers.sidecar-obeys",
    group=Group.WORKERS,
    needs=(42,),
    rule="the frontend sidecar of a Dynamo worker routes as the EPP's headers say: router mode direct",
    source=DYNAMO,
    fix="run the sidecar with --router-mode direct (DYN_ROUTER_MODE=direct)",
)
def sidecar_obeys(chain: Chain) -> Iterator[Problem]:
    for pod in _dynamo(chain):
        name, sidecar = name_of(pod), _sidecar(pod)
        if sidecar is None:
            yield Problem(f"pod {name} has no sidecar with a port named {DYNAMO_PORT_NAME}", f"Pod {name}")
            continue
        settings, _ = settings_of(chain, pod, sidecar)
        mode = first_of(flags_of(sidecar), "--router-mode") or first_of(settings, "DYN_ROUTER_MODE")
        if mode != "direct":
            text = f"sidecar of {name} routes by itself ({mode or 'default mode'}); the EPP decision is ignored"
            yield Problem(text, f"Pod {name}")


@check(
    44,
    "workers.known",
    group=Group.WORKERS,
    needs=(41,),
    rule="the EPP knows the endpoints that the pool has, and no others",
    source=OWN,
    fix="see `epp status`: which source of endpoints it follows, and when it was last heard",
)
def known(chain: Chain) -> Iterator[Problem]:
    status = chain.body.epp_status
    if status is None:
        raise NotApplicableError("the EPP's own status is not recorded: give --epp-status")
    pool = {host_port(pod.status.pod_ip or "", port) for pod in chain.ready_workers for port in ports_of(chain, pod)}
    theirs = set(status.endpoints)
    if theirs != pool:
        listed = ", ".join(sorted(theirs ^ pool)[:5])
        yield Problem(f"discovery has {len(theirs)}, pool has {len(pool)}; difference {listed}", "EPP")


@check(
    45,
    "workers.no-strangers",
    group=Group.WORKERS,
    needs=(41,),
    rule="no EPP, frontend, planner, proxy or prefill-only pod is in the pool",
    source=f"{DYNAMO}; " + observed("a selector that is too wide sends chats to pods that serve none"),
    fix="narrow the pool's selector",
)
def no_strangers(chain: Chain) -> Iterator[Problem]:
    pickers = {pod.metadata.name for pod in _pickers(chain)}
    for pod in chain.workers:
        labels, name = labels_of(pod), name_of(pod)
        kind = labels.get(DYNAMO_TYPE, "").lower()
        if pod.metadata.name in pickers:
            yield Problem(f"pod {name} (EPP) must not be in the pool", f"Pod {name}")
        elif kind in STRANGERS or labels.get(DYNAMO_CLASS, "worker") != "worker":
            yield Problem(f"pod {name} ({kind or labels[DYNAMO_CLASS]}) must not be in the pool", f"Pod {name}")
        elif "gateway.networking.k8s.io/gateway-name" in labels:
            yield Problem(f"pod {name} (gateway proxy) must not be in the pool", f"Pod {name}")


def _pickers(chain: Chain) -> list[Pod]:
    if chain.pool.spec.endpoint_picker_ref is None:
        return []
    place = chain.picker_place
    exists = chain.find(chain.body.sections.services, "Services", place)
    return chain.picker_pods if exists is not None else []


CHECKS = (ready, ports, sidecar_obeys, known, no_strangers)
