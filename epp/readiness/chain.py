"""The chain under test: which Gateway, route, pool, EPP and workers belong together, by what a snapshot holds."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

from epp.readiness.policy import Policy
from epp.readiness.snapshot.core_objects import Pod, Service
from epp.readiness.snapshot.document import Body, Section, State
from epp.readiness.snapshot.gateway_objects import (
    POOL_GROUP,
    BackendRef,
    Gateway,
    GatewayClass,
    HTTPRoute,
    InferencePool,
    ParentRef,
)
from epp.readiness.snapshot.objects import Meta, Object

T = TypeVar("T", bound=Object)


class Ref(NamedTuple):
    """An object's place."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Entry(StrEnum):
    """Who schedules requests in this deployment."""

    PLAIN = "plain"
    """An EPP over workers without a sidecar that obeys it, as plain vLLM."""
    OPERATOR = "operator"
    """An EPP over workers that Dynamo's operator runs."""
    FRONTEND = "frontend"
    """Dynamo's Frontend: no Gateway and no EPP is needed."""


class UnreadableError(Exception):
    """What a check needs could not be read; the text says what, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A snapshot, and the names of the links in it; None: nothing tells which."""

    body: Body
    policy: Policy
    now: datetime
    entry: Entry
    pool_ref: Ref | None
    gateway_ref: Ref | None

    def objects(self, section: Section[T], what: str, namespace: str) -> list[T]:
        """The objects of a namespace. Raises UnreadableError when they are not all known."""
        self.readable(section, what, namespace)
        return [found for found in section.objects if found.metadata.namespace == namespace]

    def cluster(self, section: Section[T], what: str) -> list[T]:
        """The objects of a kind without namespaces. Raises UnreadableError."""
        self.readable(section, what, "*")
        return list(section.objects)

    def readable(self, section: Section[T], what: str, namespace: str) -> None:
        """Raises UnreadableError unless all of that namespace is known."""
        if not section.covers(namespace):
            where = "" if namespace == "*" else f" of namespace {namespace}"
            state = section.state if section.state is not State.OK else "not recorded"
            detail = f": {section.error}" if section.error else ""
            raise UnreadableError(f"{what}{where} could not be read ({state}){detail}")

    def find(self, section: Section[T], what: str, ref: Ref) -> T | None:
        """The object at `ref`. Raises UnreadableError."""
        return next((it for it in self.objects(section, what, ref.namespace) if it.metadata.name == ref.name), None)

    @property
    def pool_place(self) -> Ref:
        """Where the pool should be. Raises UnreadableError when nothing names it."""
        if self.pool_ref is None:
            raise UnreadableError("no InferencePool is known: name one by --pool")
        return self.pool_ref

    @property
    def gateway_place(self) -> Ref:
        """Where the Gateway should be. Raises UnreadableError when nothing names it."""
        if self.gateway_ref is None:
            raise UnreadableError("no Gateway is known: name one by --gateway")
        return self.gateway_ref

    @property
    def pool(self) -> InferencePool:
        """The pool. Raises UnreadableError, also when it does not exist."""
        found = self.find(self.body.sections.inference_pools, "InferencePools", self.pool_place)
        return _existing(found, f"InferencePool {self.pool_ref}")

    @property
    def gateway(self) -> Gateway:
        """The Gateway. Raises UnreadableError, also when it does not exist."""
        found = self.find(self.body.sections.gateways, "Gateways", self.gateway_place)
        return _existing(found, f"Gateway {self.gateway_ref}")

    @property
    def gateway_class(self) -> GatewayClass | None:
        """The class of the Gateway, if it exists. Raises UnreadableError."""
        name = self.gateway.spec.gateway_class_name
        classes = self.cluster(self.body.sections.gateway_classes, "GatewayClasses")
        return next((found for found in classes if found.metadata.name == name), None)

    @property
    def routes(self) -> list[HTTPRoute]:
        """HTTPRoutes that send to the pool; those of unreadable namespaces are not among them."""
        pool = self.pool_place
        return [route for route in self.body.sections.http_routes.objects if backends_to(route, pool)]

    @property
    def attached(self) -> list[HTTPRoute]:
        """Those of `routes` that name the Gateway."""
        gateway = self.gateway_place
        return [route for route in self.routes if parents_at(route, gateway)]

    @property
    def picker_service(self) -> Service:
        """The Service of the EPP. Raises UnreadableError, also when it does not exist."""
        found = self.find(self.body.sections.services, "Services", self.picker_place)
        return _existing(found, f"Service {self.picker_place}")

    @property
    def picker_place(self) -> Ref:
        """Where the EPP's Service should be. Raises UnreadableError when the pool names none."""
        pool = self.pool
        if pool.spec.endpoint_picker_ref is None:
            raise UnreadableError("the pool names no endpoint picker")
        return Ref(pool.metadata.namespace, pool.spec.endpoint_picker_ref.name)

    @property
    def picker_pods(self) -> list[Pod]:
        """Pods behind the EPP's Service. Raises UnreadableError."""
        selector = self.picker_service.spec.selector or {}
        pods = self.objects(self.body.sections.pods, "Pods", self.picker_place.namespace)
        return [pod for pod in pods if selector and selector.items() <= (pod.metadata.labels or {}).items()]

    @property
    def workers(self) -> list[Pod]:
        """Pods that the pool selects, ready or not. Raises UnreadableError."""
        pool = self.pool
        pods = self.objects(self.body.sections.pods, "Pods", pool.metadata.namespace)
        return [pod for pod in pods if pool.spec.selector.selects(pod.metadata.labels)]

    @property
    def ready_workers(self) -> list[Pod]:
        """Those of `workers` that can serve. Raises UnreadableError."""
        return [pod for pod in self.workers if is_ready(pod)]

    @property
    def target_ports(self) -> list[int]:
        """The pool's target ports. Raises UnreadableError."""
        return [port.number for port in self.pool.spec.target_ports]


def backends_to(route: HTTPRoute, pool: Ref) -> list[BackendRef]:
    """The backends of a route that are the pool."""
    namespace = route.metadata.namespace
    return [
        backend
        for rule in route.spec.rules or ()
        for backend in rule.backend_refs or ()
        if is_pool(backend) and Ref(backend.namespace or namespace, backend.name) == pool
    ]


def is_pool(backend: BackendRef) -> bool:
    """Whether a backend is an InferencePool v1."""
    return backend.kind == "InferencePool" and backend.group == POOL_GROUP


def parents_at(route: HTTPRoute, gateway: Ref) -> list[ParentRef]:
    """The parents of a route that are the Gateway."""
    return [ref for ref in route.spec.parent_refs or () if place_of(ref, route.metadata) == gateway]


def place_of(ref: ParentRef, owner: Meta) -> Ref | None:
    """The Gateway that a parent names; None when it names something else."""
    return Ref(ref.namespace or owner.namespace, ref.name) if ref.kind == "Gateway" else None


def is_ready(pod: Pod) -> bool:
    """Running, Ready, with an address and not on its way out."""
    conditions = pod.status.conditions or ()
    return (
        pod.status.phase == "Running"
        and bool(pod.status.pod_ip)
        and not pod.metadata.deletion_timestamp
        and any(found.type == "Ready" and found.status == "True" for found in conditions)
    )


def _existing(found: T | None, what: str) -> T:
    if found is None:
        raise UnreadableError(f"{what} does not exist")
    return found
