"""Requests that failed a moment ago: some gateways ask again for each attempt, and must not get the same pick."""

from collections import OrderedDict
from collections.abc import Callable

from epp.endpoints.endpoint import Endpoint, HostPort
from epp.scheduling.name_hash import name_hash

_MAX_KEPT = 4096
_SECONDS = 30.0


class Retries:
    """Endpoints to avoid, by a hash of the request's id; the newest few thousand, for half a minute."""

    def __init__(self) -> None:
        self._failed: OrderedDict[int, tuple[float, frozenset[HostPort]]] = OrderedDict()
        self.on_failed: Callable[[int, Endpoint], None] = lambda _request, _endpoint: None
        """Called with the hash of the id of a request that failed on a pick of ours."""

    def failed(self, request_id: str, endpoint: Endpoint, now: float) -> None:
        """The pick for this request came to nothing: reset, refused, or answered with 5xx."""
        if request_id:
            request = name_hash(request_id)
            self.heard(request, endpoint, now)
            self.on_failed(request, endpoint)

    def heard(self, request: int, endpoint: Endpoint, now: float) -> None:
        """The request whose id has that hash failed on `endpoint`, whoever picked it."""
        self._failed[request] = (now, self._avoid(request, now) | {endpoint.host_port})
        self._failed.move_to_end(request)
        if len(self._failed) > _MAX_KEPT:
            self._failed.popitem(last=False)

    def avoid(self, request_id: str, now: float) -> frozenset[HostPort]:
        """Where earlier attempts of this request failed; empty for a first attempt."""
        return self._avoid(name_hash(request_id), now) if self._failed and request_id else frozenset()

    def _avoid(self, request: int, now: float) -> frozenset[HostPort]:
        at, endpoints = self._failed.get(request, (now, frozenset()))
        return endpoints if now - at < _SECONDS else frozenset()
