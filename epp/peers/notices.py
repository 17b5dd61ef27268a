"""What else replicas tell each other of requests: where a session went, and on which worker a request failed."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from epp.endpoints.endpoint import Endpoint
from epp.peers.wire import MOST_TIES, Tie, endpoint_key

Told = Callable[[int, Endpoint], None]
"""Takes the hash of a session or of a request id, and the endpoint."""

_MOST_WAITING = 4096
"""Of each kind that wait to be told; with more the oldest are left out."""


def _nobody(_what: int, _endpoint: Endpoint) -> None:
    """Nobody wants to know."""


@dataclass(slots=True)
class Notices:
    """Ours to be told, and theirs handed to who wants to know them. The pool is told by `join` and `leave`."""

    hear_session: Told = _nobody
    hear_failed: Told = _nobody
    wake: Callable[[], None] = lambda: None
    """Called when there is something to tell."""
    _sessions: deque[Tie] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    _failed: deque[Tie] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    _endpoints: dict[int, Endpoint] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions) + len(self._failed)

    def join(self, _column: int, endpoint: Endpoint) -> None:
        """The endpoint is in the pool."""
        self._endpoints[endpoint_key(endpoint)] = endpoint

    def leave(self, _column: int, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self._endpoints.pop(endpoint_key(endpoint), None)

    def bound(self, session: int, endpoint: Endpoint) -> None:
        """A pick of ours sent the session of that hash to `endpoint`."""
        self._sessions.append(Tie(session, endpoint_key(endpoint)))
        self.wake()

    def failed(self, request: int, endpoint: Endpoint) -> None:
        """The request whose id has that hash failed on `endpoint`."""
        self._failed.append(Tie(request, endpoint_key(endpoint)))
        self.wake()

    def take(self) -> tuple[tuple[Tie, ...], tuple[Tie, ...]]:
        """The next sessions and failed requests to tell."""
        return _first(self._sessions), _first(self._failed)

    def heard(self, sessions: tuple[Tie, ...], failed: tuple[Tie, ...]) -> None:
        """A peer told these; what it says of endpoints that are not in our pool is left out."""
        for ties, hear in ((sessions, self.hear_session), (failed, self.hear_failed)):
            for tie in ties:
                endpoint = self._endpoints.get(tie.endpoint)
                if endpoint is not None:
                    hear(tie.what, endpoint)


def _first(waiting: deque[Tie]) -> tuple[Tie, ...]:
    return tuple(waiting.popleft() for _ in range(min(len(waiting), MOST_TIES)))
