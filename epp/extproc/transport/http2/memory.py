"""What the transport holds for its peers, counted."""


class Memory:
    """Bytes held for all connections."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class ConnectionMemory:
    """Bytes held for one connection: messages half received or not read, and answers that the peer does not take."""

    def __init__(self, limit: int, total: Memory) -> None:
        self.used = 0
        self._limit = limit
        self._total = total

    def add(self, count: int) -> None:
        """Count `count` bytes more; negative: fewer."""
        self.used += count
        self._total.used += count

    @property
    def full(self) -> bool:
        """Whether this connection must not make us hold more."""
        return self.used > self._limit or (self.used > 0 and self._total.used > self._total.limit)
