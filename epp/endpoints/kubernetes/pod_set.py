"""The pods of one pool and what they offer, kept up to date change by change; no I/O."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import structlog

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.kubernetes.cluster import Defaults
from epp.endpoints.kubernetes.inference_pool import PoolSpec
from epp.endpoints.kubernetes.objects import Pod
from epp.endpoints.kubernetes.pod_endpoints import NOTHING, PodEndpoints, pod_endpoints
from epp.endpoints.kubernetes.watch import Change, Listed, Put

_log = structlog.get_logger()


class PodSet:
    """Membership follows from the pods and the pool's spec as they are now, never from how they came to be so."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._spec: PoolSpec | None = None
        self._pods: dict[str, Pod] = {}
        self._offers: dict[str, PodEndpoints] = {}
        self._claims: dict[Place, dict[str, Endpoint]] = {}
        """What the pods offer at each place, by name of the pod."""

    def __len__(self) -> int:
        return len(self._pods)

    def respecify(self, spec: PoolSpec | None) -> None:
        """The pool asks for something else now; None: there is no pool."""
        self._spec = spec
        for name, pod in self._pods.items():
            self._offer(name, pod)

    def apply(self, change: Change[Pod]) -> set[Place]:
        """Take in a change of the pods; the places whose endpoints may have changed by it."""
        if isinstance(change, Listed):
            return self._replace(change.objects)
        if isinstance(change, Put):
            return self._put(change.object)
        known = self._pods.get(change.name)
        if known is None or (change.uid and known.metadata.uid != change.uid):
            return set()
        return self._remove(change.name)

    def keep(self, names: AbstractSet[str]) -> set[Place]:
        """Forget all other pods; the places whose endpoints may have changed by it."""
        return {place for name in self._pods.keys() - names for place in self._remove(name)}

    def endpoints(self) -> list[Endpoint]:
        """All endpoints there are now."""
        return [self._winner(claims) for claims in self._claims.values()]

    def at(self, place: Place) -> Endpoint | None:
        """The endpoint at `place`."""
        claims = self._claims.get(place)
        return None if claims is None else self._winner(claims)

    def _winner(self, claims: Mapping[str, Endpoint]) -> Endpoint:
        """Of several pods that claim one address, the youngest has it."""
        if len(claims) == 1:
            return next(iter(claims.values()))
        return claims[max(claims, key=lambda name: (self._pods[name].metadata.creation_timestamp or "", name))]

    def _replace(self, pods: Iterable[Pod]) -> set[Place]:
        listed = {pod.metadata.name: pod for pod in pods}
        places = self.keep(listed.keys())
        for pod in listed.values():
            places |= self._put(pod)
        return places

    def _put(self, pod: Pod) -> set[Place]:
        name = pod.metadata.name
        if self._pods.get(name) == pod:
            return set()  # most changes of a pod are to what we do not read
        self._pods[name] = pod
        return self._offer(name, pod)

    def _remove(self, name: str) -> set[Place]:
        places = self._claim(name, self._offers.pop(name).endpoints, ())
        del self._pods[name]
        return places

    def _offer(self, name: str, pod: Pod) -> set[Place]:
        """Judge the pod anew; the places at which it offers something else than before."""
        before, offer = self._offers.get(name, NOTHING), NOTHING
        if self._spec is not None and self._spec.selects(pod.metadata.labels):
            offer = pod_endpoints(pod, self._spec, self._defaults)
        for remark in offer.remarks:
            if remark not in before.remarks:  # once per pod
                _log.warning("pod looks wrong", pod=name, remark=remark)
        self._offers[name] = offer
        return self._claim(name, before.endpoints, offer.endpoints)

    def _claim(self, name: str, before: Iterable[Endpoint], after: Iterable[Endpoint]) -> set[Place]:
        """Keep the claims in step with what a pod offers; the places at which that differs."""
        left = {endpoint.place: endpoint for endpoint in before}
        come = {endpoint.place: endpoint for endpoint in after}
        for place in left.keys() - come.keys():
            claims = self._claims[place]
            del claims[name]
            if not claims:
                del self._claims[place]
        for place, endpoint in come.items():
            self._claims.setdefault(place, {})[name] = endpoint
        return {place for place in left.keys() | come.keys() if left.get(place) != come.get(place)}
