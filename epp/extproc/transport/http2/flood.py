"""How often a peer may do what is cheap for it and not for us."""

from collections.abc import Callable


class RateLimit:
    """A token bucket: `burst` at once, `per_second` in the long run, and more by `earn`."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._filled_at = clock()

    def allows(self) -> bool:
        """Count one; False when it was one too many."""
        if self._left < 1:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < 1:
                return False
        self._left -= 1
        return True

    def earn(self, count: float) -> None:
        """Allow `count` more, for work that the peer let us do."""
        self._left = min(self._burst, self._left + count)
