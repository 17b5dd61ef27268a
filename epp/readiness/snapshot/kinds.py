"""Which kinds are recorded, where the API server has them, and what is kept of each object."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from epp.readiness.snapshot import core_objects as core
from epp.readiness.snapshot import gateway_objects as gateway
from epp.readiness.snapshot import redact


class Scope(StrEnum):
    """Where a kind is looked for."""

    CLUSTER = "cluster"
    """It has no namespace."""
    ANYWHERE = "anywhere"
    """In all namespaces if we may, since a chain can cross them; else in the given ones."""
    GIVEN = "given"
    """In the namespaces of pools and gateways only."""


Keep = Callable[[object], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One recorded kind."""

    section: str
    name: str
    """As in `kind:` of a manifest."""
    plural: str
    group: str
    versions: tuple[str, ...]
    """Newest first; the first that is served is read."""
    type: type
    scope: Scope
    keep: Keep

    def path(self, version: str, namespace: str | None = None) -> str:
        """The API path of the list."""
        root = f"/apis/{self.group}/{version}" if self.group else f"/api/{version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"


def _meta_only(found: object) -> object:
    """Any object with allow-listed annotations and short messages."""
    changes: dict[str, object] = {"metadata": redact.meta(getattr(found, "metadata"))}  # noqa: B009 - of any kind
    status = getattr(found, "status", None)
    if isinstance(status, gateway.ParentsStatus):
        changes["status"] = _parents(status)
    elif isinstance(status, gateway.ConditionsStatus | gateway.GatewayStatus | gateway.GraphStatus):
        changes["status"] = replace(status, conditions=tuple(map(redact.message, status.conditions or ())))
    return replace(found, **changes)  # type: ignore[type-var]  # every kind is a Struct


def _parents(status: gateway.ParentsStatus) -> gateway.ParentsStatus:
    return gateway.ParentsStatus(
        tuple(
            replace(parent, conditions=tuple(map(redact.message, parent.conditions or ())))
            for parent in status.parents or ()
        )
    )


def _pod(found: object) -> object:
    return redact.pod(found) if isinstance(found, core.Pod) else found


def _config_map(found: object) -> object:
    return redact.config_map(found) if isinstance(found, core.ConfigMap) else found


_RBAC = "rbac.authorization.k8s.io"
_CLUSTER, _ANYWHERE, _GIVEN = Scope.CLUSTER, Scope.ANYWHERE, Scope.GIVEN


def _kind(section: str, name: str, api: str, type_: type, scope: Scope, *, keep: Keep = _meta_only) -> Kind:
    """`api` is `group/plural/version[,version]`."""
    group, plural, versions = api.split("/")
    return Kind(
        section=section,
        name=name,
        plural=plural,
        group=group,
        versions=tuple(versions.split(",")),
        type=type_,
        scope=scope,
        keep=keep,
    )


KINDS = (
    _kind(
        "definitions",
        "CustomResourceDefinition",
        "apiextensions.k8s.io/customresourcedefinitions/v1",
        gateway.Definition,
        _CLUSTER,
    ),
    _kind("namespaces", "Namespace", "/namespaces/v1", core.Namespace, _CLUSTER),
    _kind(
        "gateway_classes",
        "GatewayClass",
        f"{gateway.GATEWAY_GROUP}/gatewayclasses/v1",
        gateway.GatewayClass,
        _CLUSTER,
    ),
    _kind("gateways", "Gateway", f"{gateway.GATEWAY_GROUP}/gateways/v1", gateway.Gateway, _ANYWHERE),
    _kind("http_routes", "HTTPRoute", f"{gateway.GATEWAY_GROUP}/httproutes/v1", gateway.HTTPRoute, _ANYWHERE),
    _kind(
        "reference_grants",
        "ReferenceGrant",
        f"{gateway.GATEWAY_GROUP}/referencegrants/v1,v1beta1",
        gateway.ReferenceGrant,
        _ANYWHERE,
    ),
    _kind(
        "inference_pools",
        "InferencePool",
        f"{gateway.POOL_GROUP}/inferencepools/v1",
        gateway.InferencePool,
        _ANYWHERE,
    ),
    _kind(
        "legacy_pools",
        "InferencePool",
        f"{gateway.LEGACY_POOL_GROUP}/inferencepools/v1alpha2",
        gateway.LegacyPool,
        _ANYWHERE,
    ),
    _kind("services", "Service", "/services/v1", core.Service, _GIVEN),
    _kind("endpoint_slices", "EndpointSlice", "discovery.k8s.io/endpointslices/v1", core.EndpointSlice, _GIVEN),
    _kind("deployments", "Deployment", "apps/deployments/v1", core.Deployment, _GIVEN),
    _kind("pods", "Pod", "/pods/v1", core.Pod, _GIVEN, keep=_pod),
    _kind("network_policies", "NetworkPolicy", "networking.k8s.io/networkpolicies/v1", core.NetworkPolicy, _GIVEN),
    _kind("roles", "Role", f"{_RBAC}/roles/v1", core.Role, _GIVEN),
    _kind("role_bindings", "RoleBinding", f"{_RBAC}/rolebindings/v1", core.RoleBinding, _GIVEN),
    _kind("cluster_roles", "ClusterRole", f"{_RBAC}/clusterroles/v1", core.Role, _CLUSTER),
    _kind("cluster_role_bindings", "ClusterRoleBinding", f"{_RBAC}/clusterrolebindings/v1", core.RoleBinding, _CLUSTER),
    _kind("config_maps", "ConfigMap", "/configmaps/v1", core.ConfigMap, _GIVEN, keep=_config_map),
    _kind(
        "destination_rules",
        "DestinationRule",
        "networking.istio.io/destinationrules/v1,v1beta1",
        gateway.DestinationRule,
        _GIVEN,
    ),
    _kind(
        "backend_tls_policies",
        "BackendTLSPolicy",
        f"{gateway.GATEWAY_GROUP}/backendtlspolicies/v1,v1alpha3",
        gateway.BackendTlsPolicy,
        _GIVEN,
    ),
    _kind(
        "dynamo_graphs",
        "DynamoGraphDeployment",
        "nvidia.com/dynamographdeployments/v1beta1,v1alpha1",
        gateway.DynamoGraph,
        _GIVEN,
    ),
)
"""In the order in which they are read: what says which namespaces matter comes first."""
