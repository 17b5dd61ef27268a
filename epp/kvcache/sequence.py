"""The order of one publisher's batches: gaps, replay, restarts. No sockets, no clock."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import xxhash

_REMEMBERED = 64
"""Recent batches whose content is kept as a digest, to tell a repetition from a restarted publisher."""

_REPLAYS_UNTIL_DEAD = 3
"""Replays without any answer in a row, after which gaps no longer wait for one until the next connection."""


class SequenceOutput(Protocol):
    """What the order of batches makes happen."""

    def apply(self, seq: int, payload: bytes) -> None:
        """The next batch, in order."""

    def accept(self) -> None:
        """What was offered is what the publisher had said up to there: begin with it."""

    def refuse(self) -> None:
        """What was offered is of another process, or nobody can tell."""

    def forget(self) -> None:
        """The publisher is another process than before: what it held is gone."""

    def ask_replay(self, start: int) -> None:
        """Ask for all batches from number `start` on; ends a replay that still runs."""


_LOSSY_REPLAY = 1000
"""Batches after which older publishers silently drop the rest of a replay, perhaps its end marker too (vLLM up to 0.32
leaves ZeroMQ's default mark on the socket that answers): so long a replay is followed by another for what it lacked."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What somebody else, or an earlier process of ours, knows of the publisher: all up to batch `sequence`."""

    sequence: int
    digests: Mapping[int, int]
    """XXH3-64 of recent batches by number, the last one included."""
    complete: bool


@dataclass(slots=True)
class SequenceCounts:
    """What happened to the batches of one publisher."""

    applied: int = 0
    replayed: int = 0
    lost: int = 0
    repeated: int = 0
    restarts: int = 0
    replays: int = 0
    replays_failed: int = 0


class Sequence:
    """Puts live and replayed batches into order.

    A publisher numbers its batches from 0. While a replay runs, live batches wait. A replay begins at the last batch
    that we know, not behind it: when the publisher's copy differs from ours, or is missing although the publisher has
    no newer one, it is another process whose numbers only look like a continuation. A hole that one more replay does
    not fill is final (a batch that could not be encoded leaves one).
    """

    def __init__(self, output: SequenceOutput, *, can_replay: bool, max_held: int = 20_000) -> None:
        self._output = output
        self._can_replay = can_replay
        self._max_held = max_held
        self._last: int | None = None
        self._first = 0
        """Number of the first batch that was applied."""
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._asked: int | None = None
        self._answered = False
        self._answers = 0
        self._held: dict[int, bytes] = {}
        self._newest_live = -1
        self._hole_tried: int | None = None
        self._cut = False
        self._unanswered = 0
        self._torn = False
        self._mending = False
        self._offer: Offer | None = None
        self._connections = 0
        self._holding = False
        self.counts = SequenceCounts()
        self.complete = False
        """Whether every batch since the publisher's start, or since its last clearing, was applied."""

    @property
    def last(self) -> int | None:
        """Number of the last batch that was applied."""
        return self._last

    @property
    def offered(self) -> bool:
        """Whether an offer waits to be decided."""
        return self._offer is not None

    def digests(self, up_to: int) -> dict[int, int]:
        """Digests of recent batches up to and with number `up_to`; without that one if it is too long ago."""
        return {seq: digest for seq, digest in self._recent.items() if seq <= up_to}

    def hold(self) -> None:
        """Keep live batches until `release`: somebody may know what came before them."""
        self._holding = True

    def offer(self, offer: Offer) -> None:
        """Begin with what somebody else knows, if the publisher's replay proves that it is of the same process.

        Without a replay it must join the batches that `hold` kept. It comes before `connected`, or before `release`.
        """
        if self._last is None and self._asked is None and (self._can_replay or self._holding):
            self._offer = offer
        else:
            self._output.refuse()

    def release(self) -> None:
        """Go on with what was kept, behind what was offered if it may be used."""
        if not self._holding:
            return
        self._holding = False
        if self._can_replay and self._connections:
            self._ask(self._start())
        elif not self._can_replay:
            if self._offer is not None:
                self._decide(self._offer, proven=self._joins(self._offer))
            self._finish_replay()

    @property
    def replaying(self) -> bool:
        """Whether live batches wait for a replay."""
        return self._asked is not None or self._holding

    def connected(self) -> None:
        """A connection stands, the first or a later one: learn what was missed."""
        self._connections += 1
        self._cut = self._last is not None
        self._unanswered = 0
        self._held.clear()  # perhaps another process's; a replay brings them again
        self._newest_live = -1
        if self._can_replay and not self._holding:
            self._ask(self._start())

    def replaced(self) -> None:
        """Another publisher has taken the place of the one before, and says so."""
        self._held.clear()
        self._newest_live = -1
        self._forget()

    def mend(self) -> bool:
        """Where replays without an answer left holes, start over if the publisher still has all batches, or earlier
        ones than we know; whether that was tried.
        """
        if not self._torn or self.replaying:
            return False
        self._ask(0)
        self._mending = True
        return True

    def live(self, seq: int, payload: bytes) -> None:
        """A batch from the live socket."""
        if self.replaying:
            self._hold(seq, payload)
        elif seq == self._next:
            self._take(seq, payload)
        elif seq > self._next:
            self._gap(seq, payload)
        elif self._seen(seq, payload):
            self.counts.repeated += 1
        else:
            self._restart(seq, payload)

    def replayed(self, seq: int, payload: bytes) -> None:
        """A batch from the replay that runs."""
        if self._asked is None:
            return
        self._answers += 1
        if not self._answered:
            self._answered = True
            self._unanswered = 0
            if self._offer is not None:
                offer = self._offer
                same = seq == offer.sequence and offer.digests.get(seq) == _digest(payload)
                if self._decide(offer, proven=same):
                    return
                if seq > 0:
                    self._ask(0)
                    return
            elif self._mending:
                self._mending = self._torn = False
                if seq > 0 and self._last is not None and seq >= self._first:
                    self._finish_replay()
                    return
                self._forget()
            elif not self._same_publisher(seq, payload):
                self._forget()
                if seq > 0:
                    self._ask(0)
                    return
        if self._last is None or seq == self._last + 1:
            self._take(seq, payload)
            self.counts.replayed += 1
        elif seq > self._last:
            self._held.setdefault(seq, payload)

    def replay_ended(self) -> None:
        """The end marker came."""
        if self._asked is None:
            return
        if self._answered or (self._last is None and self._offer is None):
            self._finish_replay()
            return
        if self._offer is not None:
            self._refuse()
        else:
            self._forget()
        self._ask(0)

    def replay_timed_out(self) -> None:
        """Nothing came for a while: the end marker was lost, or nobody answers."""
        if self._asked is None:
            return
        if not self._answered:
            self.counts.replays_failed += 1
            self._unanswered += 1
            self._hole_tried = self._next
            self._torn = self._torn or not self.complete
            if self._offer is not None:
                self._refuse()
            if self._cut and self._held and min(self._held) != self._next:
                self._forget()
        self._finish_replay()

    def cleared(self) -> None:
        """The publisher said that its cache is empty: nothing from before matters any more."""
        self.complete = True

    @property
    def _next(self) -> int:
        return 0 if self._last is None else self._last + 1

    def _take(self, seq: int, payload: bytes) -> None:
        if self._last is None:
            self._first = seq
            self.complete = seq == 0
        self._last = seq
        self._recent[seq] = _digest(payload)
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        self._cut = False
        self.counts.applied += 1
        self._output.apply(seq, payload)

    def _hold(self, seq: int, payload: bytes) -> None:
        if seq <= self._newest_live:
            if self._held.get(seq) == payload or self._seen(seq, payload):
                self.counts.repeated += 1
                return
            self._held.clear()
            self._restart(seq, payload)
            return
        self._newest_live = seq
        self._held[seq] = payload
        if len(self._held) > self._max_held:
            if self._holding:
                self.release()
            else:
                self.replay_timed_out()

    def _gap(self, seq: int, payload: bytes) -> None:
        if self._can_replay and self._unanswered < _REPLAYS_UNTIL_DEAD:
            self._ask(self._last or 0)
            self._hold(seq, payload)
            return
        if self._cut:
            self._forget()
        elif self._last is not None:
            self._lose(seq - self._next)
        self._take(seq, payload)

    def _restart(self, seq: int, payload: bytes) -> None:
        self._forget()
        if self._holding:
            self._newest_live = -1
            self._hold(seq, payload)
        elif seq > 0 and self._can_replay:
            self._ask(0)
            self._newest_live = -1
            self._hold(seq, payload)
        else:
            self._end_replay()
            self._take(seq, payload)

    def _forget(self) -> None:
        self._last = None
        self._recent.clear()
        self._hole_tried = None
        self._cut = self._torn = False
        self.complete = False
        self.counts.restarts += 1
        self._output.forget()

    # What somebody else knows.

    def _start(self) -> int:
        return self._offer.sequence if self._offer is not None else self._last or 0

    def _joins(self, offer: Offer) -> bool:
        """Without a replay: whether the kept batches begin right behind what is offered, or are partly in it."""
        if self._connections != 1:
            return False
        common = self._held.keys() & offer.digests.keys()
        behind = min(self._held, default=offer.sequence + 1) == offer.sequence + 1
        return (behind or bool(common)) and all(_digest(self._held[seq]) == offer.digests[seq] for seq in common)

    def _decide(self, offer: Offer, *, proven: bool) -> bool:
        """Begin with what is offered, or never."""
        if not proven:
            self._refuse()
            return False
        self._offer = None
        self._last = offer.sequence
        self._recent = OrderedDict(sorted(offer.digests.items())[-_REMEMBERED:])
        self.complete = offer.complete
        self._output.accept()
        return True

    def _refuse(self) -> None:
        self._offer = None
        self._output.refuse()

    # Order.

    def _same_publisher(self, seq: int, payload: bytes) -> bool:
        if self._last is not None and (seq != self._last or not self._seen(seq, payload)):
            return False
        self._cut = False
        return True

    def _seen(self, seq: int, payload: bytes) -> bool:
        return self._recent.get(seq) == _digest(payload)

    def _ask(self, start: int) -> None:
        if self._asked is None:
            self._newest_live = -1
        self._asked = start
        self._answered = self._mending = False
        self._answers = 0
        self.counts.replays += 1
        self._output.ask_replay(start)

    def _finish_replay(self) -> None:
        """Apply what waited, up to a hole that a further replay may still fill."""
        for seq in sorted(self._held):
            if seq < self._next:
                continue
            if seq > self._next and self._last is not None:
                if self._can_replay and self._hole_tried != self._next:
                    self._hole_tried = self._next
                    self._ask(self._next - 1)
                    return
                self._lose(seq - self._next)
            self._take(seq, self._held.pop(seq))
        if self._answers >= _LOSSY_REPLAY and self._last is not None:
            self._ask(self._last)
        else:
            self._end_replay()

    def _end_replay(self) -> None:
        self._asked = None
        self._held.clear()

    def _lose(self, batches: int) -> None:
        self.counts.lost += batches
        self.complete = False
        self._torn = self._unanswered > 0


def _digest(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
