"""Requests that failed a moment ago: some gateways ask again for each attempt, and must not get the same pick."""

from collections import OrderedDict

from epp.endpoints.endpoint import HostPort

_MAX_KEPT = 4096
_SECONDS = 30.0


class Retries:
    """Endpoints to avoid, by request id; the newest few thousand, for half a minute."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, tuple[float, frozenset[HostPort]]] = OrderedDict()

    def failed(self, request_id: str, endpoint: HostPort, now: float) -> None:
        """The pick for this request came to nothing: reset, refused, or answered with 5xx."""
        if request_id:
            self._failed[request_id] = (now, self.avoid(request_id, now) | {endpoint})
            self._failed.move_to_end(request_id)
            if len(self._failed) > _MAX_KEPT:
                self._failed.popitem(last=False)

    def avoid(self, request_id: str, now: float) -> frozenset[HostPort]:
        """Where earlier attempts of this request failed; empty for a first attempt."""
        if not self._failed:
            return frozenset()
        at, endpoints = self._failed.get(request_id, (now, frozenset()))
        return endpoints if now - at < _SECONDS else frozenset()
