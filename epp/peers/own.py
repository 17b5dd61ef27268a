"""What this process tells its peers of its own reservations. No sockets, no clock."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from epp.peers.wire import EVERY_ID, MOST_ROWS, Row
from epp.scheduling.load import Reservation

_PART = 128
"""Rows of one part of the whole state: what a receiver takes in without a pause."""


class OwnLoad:
    """Hears the reservations of our own picks and keeps what has changed since it was last told.

    Only the latest state of a reservation is told, so a message repeats nothing, and the next one about the same
    reservation mends a lost one.
    """

    def __init__(self, key_of: Callable[[int], int], wake: Callable[[], None]) -> None:
        """`key_of` gives the `endpoint_key` of a pool column; `wake` is called when there is something to tell."""
        self._key_of = key_of
        self._wake = wake
        self._last = 0
        self._live: dict[int, tuple[Reservation, int]] = {}
        self._ids = 0
        self._changed: dict[int, None] = {}
        self._gone: list[int] = []
        self._parts: Iterator[tuple[Iterable[int], tuple[int, int]]] | None = None
        self._again = False

    @property
    def live(self) -> int:
        """Reservations that live now."""
        return len(self._live)

    @property
    def ids(self) -> int:
        """The sum of their ids modulo 2^63."""
        return self._ids & EVERY_ID

    @property
    def changed(self) -> bool:
        """Whether there is a change to tell."""
        return bool(self._changed or self._gone)

    @property
    def pending(self) -> bool:
        """Whether there is anything to tell, the whole state included."""
        return self.changed or self._parts is not None

    # What the load tells.

    def reserved(self, reservation: Reservation) -> None:
        """A pick made it."""
        self._last = number = self._last + 1
        reservation.number = number
        self._live[number] = reservation, self._key_of(reservation.column)
        self._ids += number
        self._change(number)

    def first_token(self, reservation: Reservation) -> None:
        """Its prefill is done."""
        self._change(reservation.number)

    def progressed(self, reservation: Reservation, output_tokens: int) -> None:  # noqa: ARG002 - the state has it
        """More tokens were streamed."""
        self._change(reservation.number)

    def moved(self, reservation: Reservation) -> None:
        """Another endpoint serves it."""
        self._live[reservation.number] = reservation, self._key_of(reservation.column)
        self._change(reservation.number)

    def released(self, reservation: Reservation) -> None:
        """It is over."""
        number = reservation.number
        if self._live.pop(number, None) is None:
            return
        self._ids -= number
        self._changed.pop(number, None)
        self._gone.append(number)
        self._wake()

    def _change(self, number: int) -> None:
        self._changed[number] = None
        self._wake()

    # What peers are told.

    def tell_all(self) -> None:
        """Somebody missed something: tell the whole state, in parts."""
        if self._parts is None:
            self._parts = self._all_parts()
        else:
            self._again = True
        self._wake()

    def take(self) -> tuple[tuple[Row, ...], tuple[int, ...]]:
        """The next changed rows and ended ids, a bounded number of them."""
        numbers = list(self._changed) if len(self._changed) <= MOST_ROWS else list(self._changed)[:MOST_ROWS]
        for number in numbers:
            del self._changed[number]
        gone, self._gone = self._gone[:MOST_ROWS], self._gone[MOST_ROWS:]
        return tuple(self._row(number) for number in numbers), tuple(gone)

    def take_part(self) -> tuple[tuple[Row, ...], tuple[int, int]] | None:
        """The next part of the whole state with the ids that it spans; None when all is told."""
        if self._parts is None:
            return None
        part = next(self._parts, None)
        if part is None:
            self._parts, self._again = self._all_parts() if self._again else None, False
            return self.take_part()
        numbers, span = part
        return tuple(self._row(number) for number in numbers if number in self._live), span

    def _all_parts(self) -> Iterator[tuple[Iterable[int], tuple[int, int]]]:
        numbers, last = list(self._live), self._last
        low = start = 0
        while len(numbers) - start > _PART:
            high = numbers[start + _PART - 1]
            yield numbers[start : start + _PART], (low, high)
            low, start = high, start + _PART
        # What was made since is told here too, so that the span has no end.
        yield chain(numbers[start:], range(last + 1, self._last + 1)), (low, EVERY_ID)

    def _row(self, number: int) -> Row:
        reservation, key = self._live[number]
        work, prefill = reservation.work, reservation.prefill
        return Row(
            number,
            key,
            work.prefill_tokens,
            work.context_tokens,
            reservation.micros,
            max(reservation.decode_tokens, 0),
            reservation.decode_tokens > 0 if prefill is not None else not reservation.prefilling,
            work.shown,
            prefill.number if prefill is not None else 0,
        )
