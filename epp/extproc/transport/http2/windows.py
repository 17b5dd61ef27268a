"""Flow control of what is received (RFC 9113 5.2)."""


class ReceiveWindow:
    """How much of `size` bytes the peer has used up.

    Whoever receives adds to `due`; above `size` the peer had no right to send. Grants are bundled: nothing is granted
    before `due` has come to `half`.
    """

    __slots__ = ("due", "half", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.half = (size + 1) // 2
        self.due = 0
        """Bytes received and not granted anew."""

    def grant(self, held: int) -> int:
        """Bytes to grant now, where the last `held` received bytes still wait to be read; often 0."""
        due = self.due - held
        if due < self.half:
            return 0
        self.due = held
        return due
