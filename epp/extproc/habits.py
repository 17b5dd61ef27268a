"""What gateways show of responses, learnt from their streams: their header and trailer modes are never announced."""

from epp.extproc.exchange import Exchange
from epp.settings import BodyMode

_LONG_SECONDS = 1.0
"""A stream open this long without a message proves that the gateway keeps streams to the end."""
_SHORT_SECONDS = 0.05
"""A stream over this soon after its response headers may have ended with them."""

_Modes = tuple[BodyMode, BodyMode]


class Habits:
    """Tells a stream that the gateway ended early by habit from one that ended with its request.

    Gateways are told apart by their body modes. Until a habit has been seen the load of a request is estimated, which
    expires, rather than forgotten.
    """

    def __init__(self) -> None:
        self._show_responses: set[_Modes] = set()
        self._keep_streams: set[_Modes] = set()

    def learn(self, exchange: Exchange, quiet: float) -> None:
        """Take in a stream that ended `quiet` seconds after its pick or its response headers."""
        modes = _modes(exchange)
        if exchange.response.begun:
            self._show_responses.add(modes)
        if exchange.response.ended or quiet >= _LONG_SECONDS:
            self._keep_streams.add(modes)

    def unseen(self, exchange: Exchange, quiet: float) -> bool:
        """Whether the worker may still be busy although the stream is over."""
        modes = _modes(exchange)
        if exchange.response.ended or exchange.response_mode not in (BodyMode.NONE, BodyMode.AUTO):
            return False
        if modes in self._keep_streams or quiet >= _LONG_SECONDS:
            return False
        if exchange.response.begun:
            return exchange.response.streamed and quiet < _SHORT_SECONDS
        return modes not in self._show_responses


def _modes(exchange: Exchange) -> _Modes:
    return exchange.request_mode, exchange.response_mode
