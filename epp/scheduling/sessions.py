"""Which endpoint each session went to last: one memory for all rules that tie sessions, and for all replicas."""

from collections import OrderedDict
from collections.abc import Callable

from epp.endpoints.endpoint import Endpoint, Incarnation
from epp.scheduling.name_hash import name_hash


class Sessions:
    """The newest sessions, by a hash of their names: nothing of what a client wrote is kept or told to anybody."""

    def __init__(self, most: int = 65_536) -> None:
        self._most = most
        self._bound: OrderedDict[int, tuple[Incarnation, float]] = OrderedDict()
        self.on_bind: Callable[[int, Endpoint], None] = lambda _session, _endpoint: None
        """Called with the hash of a session that a pick of ours has bound."""

    def bind(self, name: str, endpoint: Endpoint, now: float) -> None:
        """A pick of ours sent a request of that session to `endpoint`."""
        session = name_hash(name)
        self.heard(session, endpoint, now)
        self.on_bind(session, endpoint)

    def heard(self, session: int, endpoint: Endpoint, now: float) -> None:
        """The session of that hash went to `endpoint`, whoever picked it."""
        self._bound[session] = endpoint.incarnation, now
        self._bound.move_to_end(session)
        if len(self._bound) > self._most:
            self._bound.popitem(last=False)

    def last(self, name: str, now: float, ttl: float) -> Incarnation | None:
        """Where the session went, if that is no more than `ttl` seconds ago."""
        bound = self._bound.get(name_hash(name)) if self._bound else None
        return bound[0] if bound is not None and now - bound[1] <= ttl else None
