"""How often a peer may do what is cheap for it and not for us."""

from collections.abc import Callable

from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError


class RateLimit:
    """A token bucket: `burst` at once, `per_second` in the long run, and more by `earn`; `what` names the excess."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float], what: str) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._what = what
        self._left = burst
        self._filled_at = clock()

    def count(self) -> None:
        """Count one. Raises H2ConnectionError when it is one too many."""
        if self._left < 1:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < 1:
                raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._what}")
        self._left -= 1

    def earn(self, count: float) -> None:
        """Allow `count` more, for work that the peer let us do."""
        self._left = min(self._burst, self._left + count)
