"""The composition root: the only place that knows all parts."""

from epp.settings import Settings


def serve(settings: Settings) -> int:
    """Run the EPP until it is told to stop; the exit code of `epp serve`."""
    raise NotImplementedError(settings)
