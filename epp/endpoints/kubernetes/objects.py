"""The few fields that are read of Kubernetes objects; msgspec skips all others unread.

Field names and meaning: Kubernetes API v1, Gateway API Inference Extension v1 and v1alpha2.
"""

from collections.abc import Mapping

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all objects: camelCase on the wire, unknown fields skipped."""


class Meta(Struct, frozen=True):
    name: str
    uid: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class Named(Struct, frozen=True):
    """Enough of any object to know which one it is."""

    metadata: Meta


class ContainerPort(Struct, frozen=True):
    container_port: int
    name: str | None = None


class Container(Struct, frozen=True):
    name: str
    ports: tuple[ContainerPort, ...] | None = None


class PodSpec(Struct, frozen=True):
    containers: tuple[Container, ...] = ()


class Condition(Struct, frozen=True):
    type: str
    status: str


class ContainerStatus(Struct, frozen=True):
    name: str
    ready: bool = False
    restart_count: int = 0


class PodIP(Struct, frozen=True):
    ip: str = ""


class PodStatus(Struct, frozen=True):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(default=None, name="podIPs")
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Struct, frozen=True):
    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class TargetPort(Struct, frozen=True):
    number: int


class InferencePoolSpec(Struct, frozen=True):
    selector: Mapping[str, object] | None = None
    """v1: `{matchLabels: {...}}`; v1alpha2: the labels themselves."""
    target_ports: tuple[TargetPort, ...] | None = None
    """v1."""
    target_port_number: int | None = None
    """v1alpha2."""
    app_protocol: str | None = None
    """v1; none given means HTTP/1.1."""


class InferencePool(Struct, frozen=True):
    metadata: Meta
    spec: InferencePoolSpec = InferencePoolSpec()


class TargetRef(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceConditions(Struct, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(Struct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: SliceConditions = SliceConditions()
    target_ref: TargetRef | None = None


class SlicePort(Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True):
    metadata: Meta
    address_type: str = "IPv4"
    """`IPv4`, `IPv6` or `FQDN`; a Service of both families has slices of each."""
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class ListMeta(Struct, frozen=True):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class ObjectList(Struct, frozen=True):
    """One page of a list; its objects stay undecoded until each has its turn."""

    metadata: ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class WatchLine(Struct, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and an object still undecoded."""

    type: str
    object: msgspec.Raw


class ApiStatus(Struct, frozen=True):
    """Why the API server refused: the body of an error answer, or the object of an ERROR line."""

    code: int = 0
    message: str = ""
