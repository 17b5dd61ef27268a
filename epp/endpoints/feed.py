"""What every way of learning endpoints has in common."""

from collections.abc import Iterable
from typing import Protocol

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.source import Source


class Changed(Protocol):
    """Called by a feed when its endpoints are other ones than before."""

    def __call__(self, places: Iterable[Place] | None = None) -> None:
        """They differ at `places` only; None: anywhere."""


class Feed(Protocol):
    """Endpoints from one place, kept up to date while `run` runs."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All that it reads, for status and readiness."""

    def endpoints(self) -> Iterable[Endpoint]:
        """All endpoints as they are now; after a failure, as they were last known."""

    def at(self, place: Place) -> Endpoint | None:
        """The one of them at `place`."""

    def problem(self) -> str:
        """What it lacks that only a person can mend, in words; empty when nothing."""

    async def run(self) -> None:
        """Keep up to date until cancelled."""
