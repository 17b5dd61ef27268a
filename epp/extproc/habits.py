"""What gateways show of responses, learnt from their streams: their header and trailer modes are never announced."""

from epp.extproc.exchange import Exchange
from epp.settings import BodyMode

_LONG_SECONDS = 1.0
"""A stream open this long after its response headers proves that the gateway keeps streams to the end."""
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

    def learn(self, exchange: Exchange, since_headers: float) -> None:
        """Take in a stream that ended `since_headers` seconds after its response headers (0: there were none)."""
        modes = _modes(exchange)
        if exchange.response.begun:
            self._show_responses.add(modes)
        if exchange.response.ended or since_headers >= _LONG_SECONDS:
            self._keep_streams.add(modes)

    def unseen(self, exchange: Exchange, since_headers: float) -> bool:
        """Whether the worker may still be busy although the stream is over."""
        if exchange.response.ended or exchange.response_mode not in (BodyMode.NONE, BodyMode.AUTO):
            return False
        modes = _modes(exchange)
        if not exchange.response.begun:
            return modes not in self._show_responses
        ended_with_headers = exchange.response.streamed and since_headers < _SHORT_SECONDS
        return ended_with_headers and modes not in self._keep_streams


def _modes(exchange: Exchange) -> _Modes:
    return exchange.request_mode, exchange.response_mode
