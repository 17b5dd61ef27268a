"""The work that our own picks have put on each endpoint, and the guard that owns each piece of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""

_MICROS = 1_000_000
_IN_FLIGHT, _PREFILL, _DECODE = range(3)
_DONE_AT, _BEHIND = range(2)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks of the endpoint it was sent to."""

    prefill_tokens: int
    """Prompt tokens that the endpoint must compute; the others are cached there."""
    context_tokens: int
    """All prompt tokens: what the request occupies once it decodes."""
    prefill_seconds: float = 0.0
    """Predicted time of the prefill alone."""
    shown: bool = True
    """Whether we shall see the first token: not of a plain JSON answer, and not if the gateway shows no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """One prefill seen from its beginning to its end: what rates are learnt from."""

    column: int
    prefill_tokens: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """The section of `/status` on the load that picks have put on endpoints."""

    reservations: int = 0
    """Made and not yet released, also on endpoints that have left: never more than streams are open, except where
    prefill is reserved apart or other replicas tell of theirs."""
    estimates: int = 0
    """Requests whose end no gateway shows, counted until their expected end."""
    prefill_tokens: int = 0
    """Promised to the pool's endpoints and not yet known to be done."""
    decode_tokens: int = 0
    """Context of the requests that decode on the pool's endpoints."""


class LoadListener(Protocol):
    """Hears what becomes of the reservations of our own picks; other replicas mirror them."""

    def reserved(self, reservation: "Reservation") -> None:
        """A pick made it; it is told further only if it gets a `number` above 0."""

    def first_token(self, reservation: "Reservation") -> None:
        """Its prefill is done."""

    def progressed(self, reservation: "Reservation", output_tokens: int) -> None:
        """So many more tokens were streamed."""

    def moved(self, reservation: "Reservation") -> None:
        """Another endpoint serves it, with other work."""

    def released(self, reservation: "Reservation") -> None:
        """Its stream ended."""


class LoadView(NamedTuple):
    """The load of some columns, in arrays that nothing changes any more."""

    in_flight: NDArray[np.int64]
    """Requests reserved and not yet ended."""
    prefill_tokens: NDArray[np.int64]
    decode_tokens: NDArray[np.int64]
    wait_seconds: NDArray[np.float64]
    """Predicted time until the prefill promised to each column is done."""


class Load:
    """Sums of all live reservations, by pool column, in whole tokens and microseconds so that they never drift.

    Prefills of one endpoint are taken to run one after another in the order of their picks: the first one is under way
    since `now` was when it became first, so the time promised shrinks as it passes. A column that changes hands gets a
    new queue; a reservation made on the old one no longer touches the sums.
    """

    def __init__(self, clock: Clock, on_prefill: Callable[[Prefill], None] | None = None) -> None:
        self._clock = clock
        self._on_prefill = on_prefill
        self.listener: LoadListener | None = None
        self.live = 0
        """Reservations made and not yet released, whatever became of their endpoints."""
        self.picks = 0
        """Requests that we placed."""
        self.picks_elsewhere = 0
        """Requests that other replicas placed, as far as they told."""
        self.words: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """By column, grows whenever its endpoint is heard of: by a first token, or by progress."""
        self._queues: list[_Queue] = []
        self._counts: NDArray[np.int64] = np.zeros((3, 0), dtype=np.int64)
        """Rows: requests in flight, prefill tokens, decode tokens."""
        self._times: NDArray[np.float64] = np.zeros((2, 0))
        """Rows: when all that was promised is done, and how many seconds of it are behind the prefill under way.

        The second is what is left while that one takes longer than predicted.
        """
        self._ends_unseen: NDArray[np.float64] = np.zeros(0)
        self._next_unseen = np.inf

    @property
    def in_flight(self) -> NDArray[np.int64]:
        """Requests reserved and not yet ended, by column."""
        row: NDArray[np.int64] = self._counts[_IN_FLIGHT]
        return row

    @property
    def prefill_tokens(self) -> NDArray[np.int64]:
        """Promised and not known to be done, by column."""
        row: NDArray[np.int64] = self._counts[_PREFILL]
        return row

    @property
    def decode_tokens(self) -> NDArray[np.int64]:
        """Context of what decodes, by column."""
        row: NDArray[np.int64] = self._counts[_DECODE]
        return row

    def join(self, column: int, _endpoint: Endpoint) -> None:
        """A new endpoint owns `column`, with no load."""
        missing = column + 1 - len(self._queues)
        if missing > 0:
            self._queues.extend(_Queue(len(self._queues) + i) for i in range(missing))
            self._counts = np.pad(self._counts, ((0, 0), (0, missing)))
            self._times = np.pad(self._times, ((0, 0), (0, missing)))
            self.words = np.pad(self.words, (0, missing))
            self._ends_unseen = np.append(self._ends_unseen, np.full(missing, np.inf))
        self._reset(column)

    def leave(self, column: int, _endpoint: Endpoint) -> None:
        """The endpoint is gone; what still runs there counts no more."""
        self._reset(column)

    def view(self, columns: NDArray[np.intp], now: float) -> LoadView:
        """What is on `columns` now."""
        if len(columns) == len(self._queues):  # all of them, as columns rise
            counts, times = self._counts.copy(), self._times.copy()
        else:
            counts, times = self._counts.take(columns, axis=1), self._times.take(columns, axis=1)
        wait = times[_DONE_AT]
        wait -= now
        np.maximum(wait, times[_BEHIND], out=wait)
        return LoadView(counts[_IN_FLIGHT], counts[_PREFILL], counts[_DECODE], wait)

    def advance(self, now: float) -> None:
        """End the prefills whose end no message shows, when their predicted time is over."""
        if now >= self._next_unseen:
            self._retire_unseen((self._ends_unseen <= now).nonzero()[0], now)
            self._next_unseen = float(self._ends_unseen.min())

    def reserve(self, column: int, work: Work, *, prefill: "Reservation | None" = None) -> "Reservation":
        """Count one request on `column` until its reservation is released.

        Where another endpoint prefills, `prefill` is its share: it ends with the first token, or with this one.
        """
        reservation = self.mirror(column, work, prefill=prefill)
        if self.listener is not None:
            self.listener.reserved(reservation)
        return reservation

    def mirror(self, column: int, work: Work, *, prefill: "Reservation | None" = None) -> "Reservation":
        """Count a request that another replica sent to `column`; nobody hears of it, as its owner tells of it."""
        reservation = Reservation(self, work, prefill)
        self.live += 1
        if prefill is not None:
            prefill.only_prefill = True
        self._enter(reservation, column)
        return reservation

    def succeed(self, ended: "Reservation", work: Work) -> "Reservation | None":
        """Count `work` where a released reservation was; None when that endpoint is gone."""
        column = ended.column
        return self.reserve(column, work) if self._queues[column] is ended.queue else None

    def _reset(self, column: int) -> None:
        self._queues[column] = _Queue(column)
        self._counts[:, column] = 0
        self._begin_next(self._queues[column], 0.0)

    def _enter(self, reservation: "Reservation", column: int) -> None:
        queue = self._queues[column]
        reservation.queue = queue
        self._counts[_IN_FLIGHT, column] += 1
        self._counts[_PREFILL, column] += reservation.work.prefill_tokens
        queue.promised += reservation.micros
        if reservation.prefill is None:
            queue.prefills[reservation] = None
            if len(queue.prefills) == 1:
                self._begin_next(queue, self._clock())
                return
        self._note_times(queue)

    def _exit(self, reservation: "Reservation") -> None:
        queue = reservation.queue
        if self._queues[queue.column] is not queue:
            return
        if reservation in queue.prefills:
            self._end_prefill(reservation, self._clock())
        self._counts[_IN_FLIGHT, queue.column] -= 1
        self._counts[_DECODE, queue.column] -= reservation.decode_tokens

    def _first_token(self, reservation: "Reservation") -> None:
        queue = reservation.queue
        if self._queues[queue.column] is not queue or reservation not in queue.prefills:
            return
        now = self._clock()
        if reservation.work.shown and next(iter(queue.prefills)) is reservation:
            self._tell(reservation, now)
        elif reservation.work.shown:
            self._end_unseen_before(reservation, now)
        self._end_prefill(reservation, now)
        self._decode(reservation, reservation.work.context_tokens)

    def _tell(self, reservation: "Reservation", now: float) -> None:
        if self._on_prefill is not None:
            work, column = reservation.work, reservation.queue.column
            seconds = max(0.0, now - reservation.queue.since)
            self._on_prefill(
                Prefill(
                    column=column,
                    prefill_tokens=work.prefill_tokens,
                    context_tokens=work.context_tokens,
                    seconds=seconds,
                )
            )

    def _decode(self, reservation: "Reservation", tokens: int) -> None:
        if self._queues[reservation.queue.column] is reservation.queue:
            reservation.decode_tokens += tokens
            self._counts[_DECODE, reservation.queue.column] += tokens

    def _end_prefill(self, reservation: "Reservation", now: float) -> None:
        queue = reservation.queue
        was_first = next(iter(queue.prefills)) is reservation
        del queue.prefills[reservation]
        self._counts[_PREFILL, queue.column] -= reservation.work.prefill_tokens
        queue.promised -= reservation.micros
        if was_first:
            self._begin_next(queue, now)
        else:
            self._note_times(queue)

    def _begin_next(self, queue: "_Queue", now: float) -> None:
        first = next(iter(queue.prefills), None)
        queue.since = now
        queue.first = 0 if first is None else first.micros
        self._note_times(queue)
        end = np.inf if first is None or first.work.shown else now + queue.first / _MICROS
        if end != self._ends_unseen[queue.column]:
            self._ends_unseen[queue.column] = end
            self._next_unseen = min(self._next_unseen, end)

    def _note_times(self, queue: "_Queue") -> None:
        self._times[_DONE_AT, queue.column] = queue.since + queue.promised / _MICROS
        self._times[_BEHIND, queue.column] = (queue.promised - queue.first) / _MICROS

    def _retire_unseen(self, columns: NDArray[np.intp], now: float) -> None:
        for column in columns.tolist():
            while (end := float(self._ends_unseen[column])) <= now:
                first = next(iter(self._queues[column].prefills))
                self._end_unseen(first, end)

    def _end_unseen_before(self, reservation: "Reservation", now: float) -> None:
        """A first token shows that the prefills before it are done; shown ones will tell so themselves."""
        for earlier in list(reservation.queue.prefills):
            if earlier is reservation:
                return
            if not earlier.work.shown:
                self._end_unseen(earlier, now)

    def _end_unseen(self, reservation: "Reservation", now: float) -> None:
        self._end_prefill(reservation, now)
        if reservation.only_prefill:
            reservation.release()
        else:
            self._decode(reservation, reservation.work.context_tokens)


class _Queue:
    """The prefills promised to one incarnation of an endpoint, in the order of their picks."""

    __slots__ = ("column", "first", "prefills", "promised", "since")

    def __init__(self, column: int) -> None:
        self.column = column
        self.prefills: dict[Reservation, None] = {}
        self.promised = 0
        """Microseconds of all of them."""
        self.first = 0
        """Microseconds of the one that is under way."""
        self.since = 0.0
        """When that one began."""


class Reservation:
    """The load that one pick puts on one endpoint; exists from the pick to the end of the stream."""

    __slots__ = ("_load", "_released", "decode_tokens", "micros", "number", "only_prefill", "prefill", "queue", "work")

    queue: _Queue

    def __init__(self, load: Load, work: Work, prefill: "Reservation | None" = None) -> None:
        self._load = load
        self.prefill = prefill
        self.number = 0
        """Its name among replicas; 0: not told to them."""
        self.only_prefill = False
        self._released = False
        self.work = work
        self.micros = round(work.prefill_seconds * _MICROS)
        self.decode_tokens = 0

    @property
    def column(self) -> int:
        """The pool column that it was made on."""
        return self.queue.column

    @property
    def released(self) -> bool:
        """Whether the load is gone."""
        return self._released

    @property
    def prefilling(self) -> bool:
        """Whether its endpoint, which is still there, has its prefill before it."""
        return self in self.queue.prefills

    def first_token(self) -> None:
        """Prefill is done: its tokens stop counting and the context starts to count as decode work."""
        if self._released:
            return
        self._load.words[self.queue.column] += 1
        if self.number and self._load.listener is not None:
            self._load.listener.first_token(self)
        if self.prefill is None:
            self._load._first_token(self)
        elif not self.prefill.released:
            self.prefill.first_token()
            self.prefill.release()
            self._load._decode(self, self.work.context_tokens)

    def progress(self, output_tokens: int) -> None:
        """`output_tokens` more were streamed."""
        if not self._released:
            self._load.words[self.queue.column] += 1
            self._load._decode(self, output_tokens)
            if self.number and self._load.listener is not None:
                self._load.listener.progressed(self, output_tokens)

    def move(self, column: int, work: Work) -> None:
        """Another endpoint serves the request: take the load off the first one and put `work` on `column`."""
        if not self._released:
            self._load._exit(self)
            if self.prefill is not None:  # the prompt is computed elsewhere
                work = replace(work, prefill_tokens=0, prefill_seconds=0.0)
            self.work, self.micros, self.decode_tokens = work, round(work.prefill_seconds * _MICROS), 0
            self._load._enter(self, column)
            if self.number and self._load.listener is not None:
                self._load.listener.moved(self)

    def release(self) -> None:
        """The request ended; safe to call again."""
        if self.prefill is not None:
            self.prefill.release()
        if not self._released:
            self._load._exit(self)
            self._load.live -= 1
            self._released = True
            if self.number and self._load.listener is not None:
                self._load.listener.released(self)
