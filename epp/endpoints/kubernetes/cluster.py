"""What all feeds from one Kubernetes API have in common."""

from dataclasses import dataclass

from epp.endpoints.endpoint import Role
from epp.endpoints.feed import Changed
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.watch import Timing
from epp.endpoints.source import SourceMetrics
from epp.settings import PodReadiness


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One namespace of one API server, and how it is watched."""

    client: KubernetesClient
    namespace: str
    timing: Timing
    changed: Changed
    metrics: SourceMetrics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for workers that say nothing else."""

    readiness: PodReadiness = PodReadiness.POD
    roles: frozenset[Role] | None = None
    """Roles of all workers of this pool; None: each worker says."""
    events_port: int | None = None
    replay_port: int | None = None
    ipv6: bool = False
    """Which address of a pod with both families is used."""
