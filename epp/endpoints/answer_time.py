"""How long a worker usually takes to answer, and so from when on its silence means something."""

_FACTOR = 4.0
"""Patience over the usual time."""
_FORGET = 0.8
"""What one more answer leaves of the longest before it."""


class AnswerTime:
    """The longest time of late, in seconds."""

    __slots__ = ("_usual",)

    def __init__(self) -> None:
        self._usual = 0.0

    def note(self, seconds: float) -> None:
        """An answer took so long."""
        self._usual = max(seconds, self._usual * _FORGET)

    def patience(self, least: float) -> float:
        """Seconds after which an answer is overdue: `least`, or more from one that usually takes a good part of it."""
        return max(least, self._usual * _FACTOR)
