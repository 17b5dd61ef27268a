"""Objects of the Gateway API and of its Inference Extension, as far as they are recorded."""

from collections.abc import Mapping

import msgspec

from epp.readiness.snapshot.objects import Condition, Meta, Selector, Struct

GATEWAY_GROUP = "gateway.networking.k8s.io"
POOL_GROUP = "inference.networking.k8s.io"
LEGACY_POOL_GROUP = "inference.networking.x-k8s.io"


class ConditionsStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class DefinitionVersion(Struct, frozen=True):
    name: str
    served: bool = False


class DefinitionSpec(Struct, frozen=True):
    versions: tuple[DefinitionVersion, ...] = ()


class Definition(Struct, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta
    spec: DefinitionSpec = DefinitionSpec()
    status: ConditionsStatus = ConditionsStatus()


class GatewayClassSpec(Struct, frozen=True):
    controller_name: str = ""


class GatewayClass(Struct, frozen=True):
    metadata: Meta
    spec: GatewayClassSpec = GatewayClassSpec()
    status: ConditionsStatus = ConditionsStatus()


class KindRef(Struct, frozen=True):
    kind: str
    group: str = GATEWAY_GROUP


class RouteNamespaces(Struct, frozen=True):
    from_: str = msgspec.field(default="Same", name="from")
    selector: Selector | None = None


class AllowedRoutes(Struct, frozen=True):
    namespaces: RouteNamespaces = RouteNamespaces()
    kinds: tuple[KindRef, ...] | None = None


class Listener(Struct, frozen=True):
    name: str
    port: int
    protocol: str = "HTTP"
    hostname: str | None = None
    allowed_routes: AllowedRoutes = AllowedRoutes()


class GatewaySpec(Struct, frozen=True):
    gateway_class_name: str = ""
    listeners: tuple[Listener, ...] = ()


class Address(Struct, frozen=True):
    value: str = ""
    type: str = "IPAddress"


class ListenerStatus(Struct, frozen=True):
    name: str
    supported_kinds: tuple[KindRef, ...] | None = None
    attached_routes: int = 0
    conditions: tuple[Condition, ...] | None = None


class GatewayStatus(Struct, frozen=True):
    addresses: tuple[Address, ...] | None = None
    conditions: tuple[Condition, ...] | None = None
    listeners: tuple[ListenerStatus, ...] | None = None


class Gateway(Struct, frozen=True):
    metadata: Meta
    spec: GatewaySpec = GatewaySpec()
    status: GatewayStatus = GatewayStatus()


class ParentRef(Struct, frozen=True):
    """What a route is attached to; an absent namespace is the object's own."""

    name: str
    namespace: str | None = None
    group: str = GATEWAY_GROUP
    kind: str = "Gateway"
    section_name: str | None = None
    port: int | None = None


class ParentStatus(Struct, frozen=True):
    """What one controller says about an object and one of its parents."""

    parent_ref: ParentRef
    controller_name: str = ""
    conditions: tuple[Condition, ...] | None = None


class ParentsStatus(Struct, frozen=True):
    parents: tuple[ParentStatus, ...] | None = None


class PathMatch(Struct, frozen=True):
    type: str = "PathPrefix"
    value: str = "/"


class NamedMatch(Struct, frozen=True):
    """A header or query parameter that a rule looks at; the value is not recorded."""

    name: str
    type: str = "Exact"


class RouteMatch(Struct, frozen=True):
    path: PathMatch = PathMatch()
    method: str | None = None
    headers: tuple[NamedMatch, ...] | None = None
    query_params: tuple[NamedMatch, ...] | None = None


class PathModifier(Struct, frozen=True):
    type: str = ""
    replace_full_path: str | None = None
    replace_prefix_match: str | None = None


class UrlRewrite(Struct, frozen=True):
    hostname: str | None = None
    path: PathModifier | None = None


class RouteFilter(Struct, frozen=True):
    """A filter; of header modifiers only the type is recorded, since their values may be secret."""

    type: str
    url_rewrite: UrlRewrite | None = msgspec.field(default=None, name="urlRewrite")


class BackendRef(Struct, frozen=True):
    name: str
    group: str = ""
    kind: str = "Service"
    namespace: str | None = None
    port: int | None = None
    weight: int = 1


class Timeouts(Struct, frozen=True):
    request: str | None = None
    backend_request: str | None = None


class Retry(Struct, frozen=True):
    codes: tuple[int, ...] | None = None
    attempts: int | None = None
    backoff: str | None = None


class RouteRule(Struct, frozen=True):
    matches: tuple[RouteMatch, ...] | None = None
    filters: tuple[RouteFilter, ...] | None = None
    backend_refs: tuple[BackendRef, ...] | None = None
    timeouts: Timeouts | None = None
    retry: Retry | None = None


class HTTPRouteSpec(Struct, frozen=True):
    parent_refs: tuple[ParentRef, ...] | None = None
    hostnames: tuple[str, ...] | None = None
    rules: tuple[RouteRule, ...] | None = None


class HTTPRoute(Struct, frozen=True):
    metadata: Meta
    spec: HTTPRouteSpec = HTTPRouteSpec()
    status: ParentsStatus = ParentsStatus()


class GrantFrom(Struct, frozen=True):
    group: str
    kind: str
    namespace: str


class GrantTo(Struct, frozen=True):
    group: str
    kind: str
    name: str | None = None


class ReferenceGrantSpec(Struct, frozen=True):
    from_: tuple[GrantFrom, ...] = msgspec.field(default=(), name="from")
    to: tuple[GrantTo, ...] = ()


class ReferenceGrant(Struct, frozen=True):
    metadata: Meta
    spec: ReferenceGrantSpec = ReferenceGrantSpec()


class PortNumber(Struct, frozen=True):
    number: int
    app_protocol: str | None = None


class PickerRef(Struct, frozen=True):
    name: str
    group: str = ""
    kind: str = "Service"
    port: PortNumber | None = None
    failure_mode: str = "FailClose"


class InferencePoolSpec(Struct, frozen=True):
    selector: Selector = Selector()
    target_ports: tuple[PortNumber, ...] = ()
    app_protocol: str | None = None
    endpoint_picker_ref: PickerRef | None = None


class InferencePool(Struct, frozen=True):
    """An InferencePool v1."""

    metadata: Meta
    spec: InferencePoolSpec = InferencePoolSpec()
    status: ParentsStatus = ParentsStatus()


class LegacyPool(Struct, frozen=True):
    """An InferencePool of the group x-k8s.io: only that it exists matters."""

    metadata: Meta


class TargetRef(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    section_name: str | None = None


class BackendTlsPolicySpec(Struct, frozen=True):
    target_refs: tuple[TargetRef, ...] = ()


class BackendTlsPolicy(Struct, frozen=True):
    """Tells a Gateway to speak TLS to a Service."""

    metadata: Meta
    spec: BackendTlsPolicySpec = BackendTlsPolicySpec()


class TlsSettings(Struct, frozen=True):
    mode: str = "DISABLE"
    insecure_skip_verify: bool | None = None


class TrafficPolicy(Struct, frozen=True):
    tls: TlsSettings | None = None


class DestinationRuleSpec(Struct, frozen=True):
    host: str = ""
    traffic_policy: TrafficPolicy | None = None


class DestinationRule(Struct, frozen=True):
    """Istio's way to say how to speak to a host."""

    metadata: Meta
    spec: DestinationRuleSpec = DestinationRuleSpec()


class GraphComponent(Struct, frozen=True):
    component_type: str = ""
    replicas: int | None = None


class NamedComponent(Struct, frozen=True):
    name: str = ""
    type: str = ""
    replicas: int | None = None


class GraphSpec(Struct, frozen=True):
    services: Mapping[str, GraphComponent] | None = None
    """v1alpha1."""
    components: tuple[NamedComponent, ...] | None = None
    """v1beta1."""


class GraphStatus(Struct, frozen=True):
    state: str = ""
    conditions: tuple[Condition, ...] | None = None


class DynamoGraph(Struct, frozen=True):
    """A DynamoGraphDeployment: what Dynamo's operator runs."""

    metadata: Meta
    spec: GraphSpec = GraphSpec()
    status: GraphStatus = GraphStatus()

    def types(self) -> frozenset[str]:
        """The component types that it asks for, in lower case."""
        of_services = (component.component_type for component in (self.spec.services or {}).values())
        of_components = (component.type for component in self.spec.components or ())
        return frozenset(name.lower() for name in (*of_services, *of_components))
