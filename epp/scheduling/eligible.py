"""Who may be picked: by role, by what the gateway allows, by what looks dead, by weight."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

from epp.endpoints.endpoint import Endpoint, HostPort, Role
from epp.endpoints.pool import PoolSnapshot


class NoEndpointError(Exception):
    """Nothing may serve the request; the text says why and is safe to show to the client."""


class Eligible:
    """Positions in a snapshot; those of each role are worked out once for each change of the pool."""

    def __init__(
        self, suspended: Callable[[], Collection[HostPort]] = frozenset, draw: Callable[[], float] = random.random
    ) -> None:
        self._suspended = suspended
        self._draw = draw
        """A random number in [0, 1)."""
        self._snapshot: PoolSnapshot | None = None
        self._decode: Sequence[int] = ()
        self._prefill: Sequence[int] = ()
        self._encode: Sequence[int] = ()
        self._several_ranks: frozenset[int] = frozenset()
        self._weighted = False
        self.split = False
        """Whether prefill and decoding have workers of their own, in the pool of the last `decode`."""

    def decode(
        self, snapshot: PoolSnapshot, subset: Collection[str] | None, avoid: Collection[HostPort]
    ) -> Sequence[int]:
        """Who may answer the request; `subset` holds the only hosts allowed, as `ip:port` or `ip`."""
        self._learn(snapshot)
        allowed = self._decode
        if subset is not None:
            allowed = [i for i in allowed if _named(snapshot.endpoints[i], subset)]
        return self._fresh(snapshot, allowed, avoid)

    def prefill(self, snapshot: PoolSnapshot, avoid: Collection[HostPort]) -> Sequence[int]:
        """Who does nothing but prefill."""
        self._learn(snapshot)
        return self._fresh(snapshot, self._prefill, avoid) if self._prefill else ()

    def encode(self, snapshot: PoolSnapshot) -> Sequence[int]:
        """Who does nothing but encode media."""
        self._learn(snapshot)
        return self._fresh(snapshot, self._encode, ()) if self._encode else ()

    def has_several_ranks(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint is one of several ranks of a Dynamo worker."""
        return endpoint.instance_id in self._several_ranks

    def _learn(self, snapshot: PoolSnapshot) -> None:
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        self._weighted = {endpoint.weight for endpoint in snapshot.endpoints} - {1.0} != set()
        roles = [endpoint.roles for endpoint in snapshot.endpoints]
        kinds = set(roles)  # few, however many endpoints there are: looking into each would take milliseconds
        decode = {kind for kind in kinds if Role.DECODE in kind}
        prefill = {kind for kind in kinds - decode if Role.PREFILL in kind}
        self._decode = range(len(roles)) if decode == kinds else _positions(roles, decode)
        self._prefill = _positions(roles, prefill)
        self.split = bool(prefill) or any(Role.PREFILL not in kind for kind in decode)
        self._encode = _positions(roles, kinds & {frozenset({Role.ENCODE})})
        ids = Counter(each.instance_id for each in snapshot.endpoints if each.instance_id is not None)
        self._several_ranks = frozenset(one for one, count in ids.items() if count > 1)

    def _fresh(self, snapshot: PoolSnapshot, allowed: Sequence[int], avoid: Collection[HostPort]) -> Sequence[int]:
        """Neither suspended nor avoided ones while others are left, and of these who is considered this time."""
        suspended = self._suspended()
        if not suspended and not avoid:
            return self._considered(snapshot, allowed)
        for shunned in ({*avoid, *suspended}, suspended, avoid):
            if left := [i for i in allowed if snapshot.endpoints[i].host_port not in shunned]:
                return self._considered(snapshot, left)
        return self._considered(snapshot, allowed)

    def _considered(self, snapshot: PoolSnapshot, allowed: Sequence[int]) -> Sequence[int]:
        """Each endpoint for the share of the requests that its weight is of the greatest weight among them."""
        if not self._weighted:
            return allowed
        weights = [snapshot.endpoints[i].weight for i in allowed]
        most = max(weights, default=0.0)
        if most == 0.0:
            return allowed
        return [i for i, weight in zip(allowed, weights, strict=True) if weight == most or self._draw() * most < weight]


def _positions(roles: Sequence[frozenset[Role]], wanted: AbstractSet[frozenset[Role]]) -> list[int]:
    return [i for i, each in enumerate(roles) if each in wanted] if wanted else []


def _named(endpoint: Endpoint, subset: Collection[str]) -> bool:
    return endpoint.host_port in subset or endpoint.address in subset
