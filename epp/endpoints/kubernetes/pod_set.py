"""The pods of one pool and what they offer, kept up to date change by change; no I/O."""

from collections.abc import Iterable

import structlog

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.kubernetes.cluster import Defaults
from epp.endpoints.kubernetes.inference_pool import PoolSpec
from epp.endpoints.kubernetes.objects import Pod
from epp.endpoints.kubernetes.pod_endpoints import PodEndpoints, pod_endpoints
from epp.endpoints.kubernetes.watch import Change, Listed, Put

_log = structlog.get_logger()


class PodSet:
    """Membership follows from the pods and the pool's spec as they are now, never from how they came to be so."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._spec: PoolSpec | None = None
        self._pods: dict[str, Pod] = {}
        self._offers: dict[str, PodEndpoints] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def respecify(self, spec: PoolSpec | None) -> None:
        """The pool asks for something else now; None: there is no pool."""
        self._spec = spec
        self._offers = {name: self._offer(pod) for name, pod in self._pods.items()}

    def apply(self, change: Change[Pod]) -> bool:
        """Take in a change of the pods; whether the endpoints changed by it."""
        if isinstance(change, Listed):
            return self._replace(change.objects)
        if isinstance(change, Put):
            return self._put(change.object)
        known = self._pods.get(change.name)
        if known is None or (change.uid and known.metadata.uid != change.uid):
            return False
        del self._pods[change.name]
        return bool(self._offers.pop(change.name).endpoints)

    def endpoints(self) -> list[Endpoint]:
        """All endpoints there are now; of two pods that claim one address, only the younger pod's."""
        offered = [endpoint for offer in self._offers.values() for endpoint in offer.endpoints]
        if len({endpoint.host_port for endpoint in offered}) == len(offered):
            return offered
        chosen: dict[str, tuple[str, Endpoint]] = {}
        for name, offer in self._offers.items():
            born = self._pods[name].metadata.creation_timestamp or ""
            for endpoint in offer.endpoints:
                rival = chosen.get(endpoint.host_port)
                if rival is None or rival[0] <= born:
                    chosen[endpoint.host_port] = (born, endpoint)
        return [endpoint for _, endpoint in chosen.values()]

    def _replace(self, pods: Iterable[Pod]) -> bool:
        before = {name: offer.endpoints for name, offer in self._offers.items() if offer.endpoints}
        self._pods = {pod.metadata.name: pod for pod in pods}
        self._offers = {name: self._remarked(name, self._offer(pod)) for name, pod in self._pods.items()}
        return before != {name: offer.endpoints for name, offer in self._offers.items() if offer.endpoints}

    def _put(self, pod: Pod) -> bool:
        name = pod.metadata.name
        if self._pods.get(name) == pod:
            return False  # most changes of a pod are to what we do not read
        before = self._offers.get(name, PodEndpoints()).endpoints
        self._pods[name] = pod
        self._offers[name] = self._remarked(name, self._offer(pod))
        return self._offers[name].endpoints != before

    def _offer(self, pod: Pod) -> PodEndpoints:
        if self._spec is None or not self._spec.selects(pod.metadata.labels):
            return PodEndpoints()
        return pod_endpoints(pod, self._spec.ports, self._defaults)

    def _remarked(self, name: str, offer: PodEndpoints) -> PodEndpoints:
        """Say once per pod what looks wrong with it."""
        known = self._offers.get(name, PodEndpoints()).remarks
        for remark in offer.remarks:
            if remark not in known:
                _log.warning("pod looks wrong", pod=name, remark=remark)
        return offer
