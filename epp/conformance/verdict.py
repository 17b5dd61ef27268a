"""How a check can end."""

from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It needs something that the user did not give."""
    UNDECIDED = "undecided"
    """It could not be tried, so it says nothing about the target."""


class FailedError(Exception):
    """The target broke the rule; the text says what was seen."""


class SkippedError(Exception):
    """The check needs what was not given; the text says what."""
