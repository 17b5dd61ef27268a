"""The reservations of one peer, mirrored in our own load. No sockets, no clock."""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from epp.peers.wire import EVERY_ID, Beat, Message, Row
from epp.scheduling.load import Load, Reservation, Work


class _Held:
    __slots__ = ("reservation", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.reservation: Reservation | None = None
        """None: its endpoint is not in our pool."""


class Mirror:
    """Keeps one reservation in `load` for each that the peer says it has, on the endpoint that it names.

    A hole in the numbers of its messages, or totals that differ, make it `torn` until the peer has told its whole
    state. Rows of an endpoint that is not in our pool wait until it joins.
    """

    def __init__(self, load: Load, column_of: Callable[[int], int | None], *, most: int = 100_000) -> None:
        """`column_of` finds the pool column of an `endpoint_key`; at most `most` reservations are kept."""
        self._load = load
        self._column_of = column_of
        self._most = most
        self._held: dict[int, _Held] = {}
        self._ids = 0
        self._number = 0
        self._picks = 0
        self._covered: int | None = None
        self.torn = True
        """Whether a part of the peer's state may be missing here."""
        self.lost = 0
        """Messages that did not come."""
        self.repeated = 0
        """Messages that came twice."""
        self.mended = 0
        """Times that the whole state was told after something was missed."""
        self.refused = 0
        """Reservations beyond the most that are kept."""

    def __len__(self) -> int:
        return len(self._held)

    def receive(self, message: Message) -> bool:
        """Take in one message; False for one that was here before."""
        if message.number <= self._number:
            self.repeated += 1
            return False
        missed = message.number - self._number - 1
        if missed and self._number:
            self.lost += missed
        if missed:
            self.torn, self._covered = True, None
        self._number = message.number
        if self._picks:
            self._load.picks_elsewhere += max(message.picks - self._picks, 0)
        self._picks = message.picks
        for row in message.rows:
            self._put(row, witnessed=not missed and message.span is None)
        for number in message.gone:
            self._remove(number)
        if message.span is not None:
            self._span(*message.span, {row.id for row in message.rows})
        if message.beat is not None and self._differs(message.beat):
            self.torn = True
        return True

    def _differs(self, beat: Beat) -> bool:
        """Whether the totals are not ours; beyond the most that is kept they cannot be."""
        return len(self._held) < self._most and (beat.live, beat.ids) != (len(self._held), self._ids & EVERY_ID)

    def joined(self, key: int) -> None:
        """The endpoint with that key is in our pool now."""
        for held in self._of(key):
            self._place(held)

    def left(self, key: int) -> None:
        """The endpoint with that key has left our pool."""
        for held in self._of(key):
            held.reservation = None

    def drop(self) -> None:
        """The peer is gone, and all its load with it; should it come back it must tell its whole state."""
        for number in list(self._held):
            self._remove(number)
        self.torn, self._covered = True, None

    def _of(self, key: int) -> Iterable[_Held]:
        # Those of workers that prefill for others come first: ids rise.
        return [held for _, held in sorted(self._held.items()) if held.row.endpoint == key]

    def _put(self, row: Row, *, witnessed: bool) -> None:
        """`witnessed`: what changed, changed just now; a rate may be learnt from it."""
        held = self._held.get(row.id)
        if held is None:
            if len(self._held) >= self._most:
                self.refused += 1
                return
            held = self._held[row.id] = _Held(row)
            self._ids += row.id
            self._place(held)
        elif _same_work(held.row, row):
            held.row = row
            self._update(held, witnessed=witnessed)
        else:
            if held.reservation is not None:
                held.reservation.prefill = None  # who prefills for it goes on
            _release(held)
            held.row = row
            self._place(held)

    def _place(self, held: _Held) -> None:
        """Count the row as it stands on its endpoint."""
        row = held.row
        column = self._column_of(row.endpoint)
        if column is None:
            return
        first = self._held.get(row.prefill)
        prefill = first.reservation if first is not None else None
        # What was not seen from its beginning teaches nothing.
        shown = row.shown and not row.prefilled and (prefill is not None or not row.prefill)
        work = Work(
            prefill_tokens=row.prefill_tokens,
            context_tokens=row.context_tokens,
            prefill_seconds=row.prefill_micros / 1e6,
            shown=shown,
        )
        held.reservation = self._load.mirror(column, work, prefill=prefill)
        self._update(held, witnessed=False)

    def _update(self, held: _Held, *, witnessed: bool) -> None:
        """Bring the mirrored reservation to the state of its row."""
        row, reservation = held.row, held.reservation
        if reservation is None:
            return
        if row.prefilled and (reservation.prefilling or _waits_for_prefill(reservation)):
            if not witnessed:
                _teach_nothing(reservation)
            reservation.first_token()
        if row.decode_tokens != reservation.decode_tokens:
            reservation.progress(row.decode_tokens - reservation.decode_tokens)

    def _remove(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._ids -= number
            _release(held)

    def _span(self, low: int, high: int, listed: set[int]) -> None:
        """Of the ids above `low` up to `high` only those listed live."""
        for number in [number for number in self._held if low < number <= high and number not in listed]:
            self._remove(number)
        if low == 0:
            self._covered = 0
        if self._covered == low:
            self._covered = high
        if self._covered == EVERY_ID:
            self.mended += self.torn
            self.torn, self._covered = False, None


def _same_work(old: Row, new: Row) -> bool:
    return (old.endpoint, old.prefill_tokens, old.context_tokens, old.prefill_micros) == (
        new.endpoint,
        new.prefill_tokens,
        new.context_tokens,
        new.prefill_micros,
    )


def _waits_for_prefill(reservation: Reservation) -> bool:
    return reservation.prefill is not None and not reservation.prefill.released


def _teach_nothing(reservation: Reservation) -> None:
    for each in (reservation, reservation.prefill):
        if each is not None:
            each.work = replace(each.work, shown=False)


def _release(held: _Held) -> None:
    if held.reservation is not None:
        held.reservation.release()
        held.reservation = None
