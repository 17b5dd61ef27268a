"""Objects of Kubernetes itself, as far as they are recorded."""

from collections.abc import Mapping

import msgspec

from epp.readiness.snapshot.objects import Condition, Meta, Selector, Struct

PortRef = int | str


class Namespace(Struct, frozen=True):
    metadata: Meta


class ServicePort(Struct, frozen=True):
    port: int
    name: str | None = None
    app_protocol: str | None = None
    target_port: PortRef | None = None


class ServiceSpec(Struct, frozen=True):
    type: str = "ClusterIP"
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    selector: Mapping[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None
    load_balancer_source_ranges: tuple[str, ...] | None = None


class Service(Struct, frozen=True):
    metadata: Meta
    spec: ServiceSpec = ServiceSpec()


class SliceConditions(Struct, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class SliceTarget(Struct, frozen=True):
    kind: str = ""
    name: str = ""


class SliceEndpoint(Struct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: SliceConditions = SliceConditions()
    target_ref: SliceTarget | None = None

    @property
    def is_ready(self) -> bool:
        """By the API an absent `ready` means ready."""
        return self.conditions.ready is not False


class SlicePort(Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True):
    metadata: Meta
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class ContainerPort(Struct, frozen=True):
    container_port: int
    name: str | None = None


class FieldRef(Struct, frozen=True):
    field_path: str = ""


class ValueFrom(Struct, frozen=True):
    """Where a value comes from; which Secret it is, is not recorded."""

    field_ref: FieldRef | None = None


class EnvVar(Struct, frozen=True):
    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class ConfigMapRef(Struct, frozen=True):
    name: str = ""


class EnvFrom(Struct, frozen=True):
    config_map_ref: ConfigMapRef | None = None
    prefix: str = ""


class Container(Struct, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvFrom, ...] | None = None
    ports: tuple[ContainerPort, ...] | None = None


class PodSpec(Struct, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    service_account_name: str | None = None
    termination_grace_period_seconds: int | None = None


class ContainerStatus(Struct, frozen=True):
    name: str
    ready: bool = False
    restart_count: int = 0


class PodStatus(Struct, frozen=True):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Struct, frozen=True):
    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class DeploymentSpec(Struct, frozen=True):
    replicas: int = 1
    selector: Selector = Selector()


class DeploymentStatus(Struct, frozen=True):
    observed_generation: int | None = None
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class Deployment(Struct, frozen=True):
    metadata: Meta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class PolicyPort(Struct, frozen=True):
    port: PortRef | None = None
    end_port: int | None = None
    protocol: str = "TCP"


class PolicyPeer(Struct, frozen=True):
    """Who may connect; a peer without selectors is a range of addresses."""

    pod_selector: Selector | None = None
    namespace_selector: Selector | None = None


class PolicyIngress(Struct, frozen=True):
    from_: tuple[PolicyPeer, ...] | None = msgspec.field(default=None, name="from")
    ports: tuple[PolicyPort, ...] | None = None


class PolicySpec(Struct, frozen=True):
    pod_selector: Selector = Selector()
    policy_types: tuple[str, ...] | None = None
    ingress: tuple[PolicyIngress, ...] | None = None


class NetworkPolicy(Struct, frozen=True):
    metadata: Meta
    spec: PolicySpec = PolicySpec()


class PolicyRule(Struct, frozen=True):
    api_groups: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    resource_names: tuple[str, ...] | None = None
    verbs: tuple[str, ...] = ()


class Role(Struct, frozen=True):
    """A Role or a ClusterRole."""

    metadata: Meta
    rules: tuple[PolicyRule, ...] | None = None


class RoleRef(Struct, frozen=True):
    kind: str
    name: str


class Subject(Struct, frozen=True):
    kind: str
    name: str
    namespace: str | None = None


class RoleBinding(Struct, frozen=True):
    """A RoleBinding or a ClusterRoleBinding."""

    metadata: Meta
    role_ref: RoleRef
    subjects: tuple[Subject, ...] | None = None


class ConfigMap(Struct, frozen=True):
    """Settings of an EPP; only allow-listed names keep their value."""

    metadata: Meta
    data: Mapping[str, str] | None = None
