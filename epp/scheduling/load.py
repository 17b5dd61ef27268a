"""The work that our own picks have put on each endpoint, and the guard that owns each piece of it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint


class Load:
    """Sums of all live reservations, by pool column.

    Only `Reservation` writes the sums. A column that changes hands is zeroed and gets a new owner number, so the end
    of a request that ran on the former owner leaves the new one untouched.
    """

    def __init__(self) -> None:
        self.in_flight: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.prefill_tokens: NDArray[np.float64] = np.zeros(0, dtype=np.float64)
        self.decode_tokens: NDArray[np.float64] = np.zeros(0, dtype=np.float64)
        self._owners: list[int] = []
        self._next_owner = 0

    def join(self, column: int, _endpoint: Endpoint) -> None:
        """A new endpoint owns `column`, with no load."""
        missing = column + 1 - len(self._owners)
        if missing > 0:
            self.in_flight = np.append(self.in_flight, np.zeros(missing, dtype=np.int64))
            self.prefill_tokens = np.append(self.prefill_tokens, np.zeros(missing))
            self.decode_tokens = np.append(self.decode_tokens, np.zeros(missing))
            self._owners.extend([-1] * missing)
        self._next_owner += 1
        self._owners[column] = self._next_owner
        self._zero(column)

    def leave(self, column: int, _endpoint: Endpoint) -> None:
        """The endpoint is gone; what still runs there counts no more."""
        self._owners[column] = -1
        self._zero(column)

    def reserve(self, column: int, *, prefill_tokens: int, context_tokens: int) -> "Reservation":
        """Count one request on `column` until its reservation is released."""
        self.in_flight[column] += 1
        self.prefill_tokens[column] += prefill_tokens
        return Reservation(self, column, self._owners[column], _Share(prefill_tokens, context_tokens))

    def owned(self, column: int, owner: int) -> bool:
        """Whether `column` still belongs to the endpoint that had it when `owner` was drawn."""
        return self._owners[column] == owner

    def _zero(self, column: int) -> None:
        self.in_flight[column] = 0
        self.prefill_tokens[column] = 0.0
        self.decode_tokens[column] = 0.0


@dataclass(slots=True)
class _Share:
    prefill_tokens: float
    context_tokens: float
    decode_tokens: float = 0.0


class Reservation:
    """The load that one pick puts on one endpoint; exists from the pick to the end of the stream."""

    __slots__ = ("_load", "_owner", "_released", "_share", "column")

    def __init__(self, load: Load, column: int, owner: int, share: _Share) -> None:
        self._load = load
        self._owner = owner
        self._share = share
        self._released = False
        self.column = column

    @property
    def released(self) -> bool:
        """Whether the load is gone."""
        return self._released

    def first_token(self) -> None:
        """Prefill is done: its tokens stop counting and the context starts to count as decode work."""
        if self._share.prefill_tokens and self._live():
            self._load.prefill_tokens[self.column] -= self._share.prefill_tokens
            self._share.prefill_tokens = 0.0
        if not self._share.decode_tokens:
            self._grow_decode(self._share.context_tokens)

    def progress(self, output_tokens: int) -> None:
        """`output_tokens` more were streamed."""
        self._grow_decode(output_tokens)

    def release(self) -> None:
        """The stream ended; safe to call again."""
        if self._live():
            self._load.in_flight[self.column] -= 1
            self._load.prefill_tokens[self.column] -= self._share.prefill_tokens
            self._load.decode_tokens[self.column] -= self._share.decode_tokens
        self._released = True

    def _grow_decode(self, tokens: float) -> None:
        if self._live():
            self._share.decode_tokens += tokens
            self._load.decode_tokens[self.column] += tokens

    def _live(self) -> bool:
        return not self._released and self._load.owned(self.column, self._owner)
