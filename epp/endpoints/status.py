"""What `/status` says of the pool."""

from collections.abc import Mapping
from dataclasses import dataclass

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint that may be picked now."""

    name: str
    host_port: str
    roles: tuple[str, ...]
    rank: int
    engine: str
    app_protocol: str
    weight: float
    uid: str
    generation: int
    instance_id: int | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """The endpoints that may be picked now; `version` grows with every change."""

    version: int
    endpoints: tuple[EndpointStatus, ...]


def pool_status(pool: Pool) -> PoolStatus:
    """The pool as decisions see it at this moment."""
    snapshot = pool.snapshot()
    return PoolStatus(version=snapshot.version, endpoints=tuple(map(_endpoint_status, snapshot.endpoints)))


def _endpoint_status(endpoint: Endpoint) -> EndpointStatus:
    return EndpointStatus(
        name=endpoint.name,
        host_port=endpoint.host_port,
        roles=tuple(sorted(endpoint.roles)),
        rank=endpoint.rank,
        engine=endpoint.engine,
        app_protocol=endpoint.app_protocol,
        weight=endpoint.weight,
        uid=endpoint.uid,
        generation=endpoint.generation,
        instance_id=endpoint.instance_id,
        labels=endpoint.labels,
    )
