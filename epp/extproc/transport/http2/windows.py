"""Flow control of what is received (RFC 9113 5.2)."""


class ReceiveWindow:
    """How much the peer may still send, and how much of it is to be granted anew.

    Grants are bundled: the peer hears of them when half the window is due.
    """

    __slots__ = ("_available", "_due", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._available = size
        self._due = 0

    def take(self, count: int) -> bool:
        """Count `count` received bytes; False when the peer had no right to send them."""
        self._available -= count
        self._due += count
        return self._available >= 0

    def grant(self, held: int) -> int:
        """Bytes to grant now, where the last `held` received bytes still wait to be read; often 0."""
        due = self._due - held
        if due * 2 < self._size:
            return 0
        self._due = held
        self._available += due
        return due
