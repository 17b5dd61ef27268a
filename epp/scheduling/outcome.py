"""What became of one request: told once, at its end, to everything that learns from traffic."""

from enum import StrEnum
from typing import Protocol

import msgspec

from epp.endpoints.endpoint import HostPort
from epp.prompts.prompt import Request
from epp.scheduling.scheduler import Pick


class Ending(StrEnum):
    """How the exchange of one request ended."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every exchange counts its ending

    COMPLETE = "complete"
    """The response came to its end."""
    ABORTED = "aborted"
    """The client, the gateway or the worker left before the end."""
    UNSEEN = "unseen"
    """The gateway showed no response: when the request ends on the worker is not known."""
    REFUSED = "refused"
    """We answered in place of a worker, mostly with an error."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the engine reported them; None where it did not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request at its end. Its reservation is already released."""

    request: Request
    ending: Ending
    pick: Pick | None
    """None: refused, or gone before the pick."""
    status: int | None = None
    """HTTP status that the client got from the worker or from us; None: not seen."""
    usage: Usage | None = None
    """None: the answer held no usage, or could not be read."""
    streamed: bool = False
    """Whether the answer was an event stream."""
    time_to_first_token: float | None = None
    """Seconds from the pick to the first token of a streamed answer; None: not seen, or not streamed."""
    seconds: float = 0.0
    """From the first message to the end of the exchange."""
    load_report: str = ""
    """What the engine says of its load in a response header; empty: nothing."""
    served: HostPort | None = None
    """The endpoint that the gateway says answered; None: it does not say."""


class Observer(Protocol):
    """Hears the end of each request, in the event loop: it must return at once and must not raise."""

    def ended(self, outcome: Outcome) -> None:
        """`outcome` is final; each exchange tells it exactly once."""
