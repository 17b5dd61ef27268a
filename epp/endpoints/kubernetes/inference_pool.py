"""What an InferencePool asks for: pods with these labels, each at these ports."""

from collections.abc import Mapping
from dataclasses import dataclass

from epp.endpoints.endpoint import HTTP
from epp.endpoints.kubernetes.objects import InferencePool

GROUP = "inference.networking.k8s.io"
OLD_GROUP = "inference.networking.x-k8s.io"
VERSIONS = ((GROUP, "v1"), (OLD_GROUP, "v1alpha2"))
"""Newest first."""
MAX_PORTS = 8
MAX_PORT = 65535


class PoolSpecError(Exception):
    """The pool cannot be followed; the text says which field is wrong."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pods of a pool and the ports of each."""

    labels: Mapping[str, str]
    ports: tuple[int, ...]
    app_protocol: str = HTTP

    def selector(self) -> str:
        """The label selector of an API request."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.labels.items()))

    def selects(self, labels: Mapping[str, str] | None) -> bool:
        """Whether a pod with `labels` belongs to the pool."""
        return labels is not None and all(labels.get(name) == value for name, value in self.labels.items())


def pool_spec(pool: InferencePool) -> PoolSpec:
    """The spec in the shape of v1 or v1alpha2. Raises PoolSpecError."""
    spec = pool.spec
    ports = tuple(port.number for port in spec.target_ports or ())
    if not ports and spec.target_port_number is not None:
        ports = (spec.target_port_number,)
    if not 1 <= len(set(ports)) == len(ports) <= MAX_PORTS or not all(1 <= port <= MAX_PORT for port in ports):
        raise PoolSpecError(f"spec.targetPorts: expected 1 to {MAX_PORTS} different ports, not {list(ports)}")
    return PoolSpec(_labels(spec.selector or {}), ports, spec.app_protocol or HTTP)


def _labels(selector: Mapping[str, object]) -> dict[str, str]:
    if "matchExpressions" in selector:
        raise PoolSpecError("spec.selector.matchExpressions: only matchLabels are supported")
    labels = selector.get("matchLabels", selector)
    if not isinstance(labels, dict) or not labels:
        raise PoolSpecError("spec.selector.matchLabels: expected at least one label")
    if not all(isinstance(value, str) for value in labels.values()):
        raise PoolSpecError("spec.selector.matchLabels: expected texts as values")
    return {str(name): value for name, value in labels.items()}
