"""What a user of the commands did wrong."""


class UsageError(Exception):
    """The user's mistake; the text names the option and what was expected."""
