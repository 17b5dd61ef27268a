"""Every reservation counts exactly once, on the incarnation that it was made on, until its stream ends."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from epp.endpoints.pool import Pool
from epp.scheduling.load import Load, Prefill, Reservation, Work
from tests.scheduling.worlds import HandClock, endpoint


def work(tokens: int = 1000, *, seconds: float = 1.0, shown: bool = True, context: int | None = None) -> Work:
    return Work(
        prefill_tokens=tokens,
        context_tokens=tokens if context is None else context,
        prefill_seconds=seconds,
        shown=shown,
    )


class One:
    """One endpoint and its load."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.seen: list[Prefill] = []
        self.load = Load(self.clock, self.seen.append)
        self.load.join(0, endpoint(0))

    def wait(self) -> float:
        self.load.advance(self.clock.now)
        return float(self.load.view(np.array([0]), self.clock.now).wait_seconds[0])


@pytest.fixture
def one() -> One:
    return One()


def test_the_promised_time_shrinks_as_it_passes_and_never_below_what_queues_behind(one: One):
    one.load.reserve(0, work(seconds=2.0))
    one.load.reserve(0, work(seconds=3.0))
    assert one.wait() == pytest.approx(5.0)
    one.clock.now += 1.5
    assert one.wait() == pytest.approx(3.5)
    one.clock.now += 100.0
    assert one.wait() == pytest.approx(3.0), "the first is late, the second has not begun"


def test_a_first_token_ends_the_prefill_and_begins_the_next(one: One):
    first = one.load.reserve(0, work(seconds=2.0, context=1500))
    one.load.reserve(0, work(seconds=3.0))
    one.clock.now += 1.0
    first.first_token()
    assert one.wait() == pytest.approx(3.0)
    assert one.load.prefill_tokens[0] == 1000
    assert one.load.decode_tokens[0] == 1500
    first.progress(20)
    assert one.load.decode_tokens[0] == 1520


def test_a_first_token_tells_how_long_the_prefill_took_since_its_turn_came(one: One):
    first, second = one.load.reserve(0, work()), one.load.reserve(0, work(tokens=700, context=900))
    one.clock.now += 1.25
    first.first_token()
    one.clock.now += 0.5
    second.first_token()
    assert [prefill.seconds for prefill in one.seen] == pytest.approx([1.25, 0.5])
    assert (one.seen[1].prefill_tokens, one.seen[1].context_tokens) == (700, 900)


def test_a_plain_answer_ends_its_prefill_by_prediction_and_teaches_nothing(one: One):
    plain = one.load.reserve(0, work(tokens=500, seconds=2.0, shown=False))
    one.load.reserve(0, work(tokens=300, seconds=1.0))
    one.clock.now += 2.5
    assert one.wait() == pytest.approx(0.5)
    assert (one.load.prefill_tokens[0], one.load.decode_tokens[0]) == (300, 500)
    plain.first_token()
    assert one.seen == []
    plain.release()
    assert (one.load.in_flight[0], one.load.decode_tokens[0]) == (1, 0)


def test_a_first_token_shows_that_the_plain_ones_before_it_are_done(one: One):
    one.load.reserve(0, work(tokens=500, seconds=9.0, shown=False))
    streamed = one.load.reserve(0, work(tokens=300, seconds=1.0))
    one.clock.now += 1.0
    streamed.first_token()
    assert one.wait() == 0.0
    assert one.load.prefill_tokens[0] == 0
    assert one.seen == [], "how the time was shared between the two is not known"


def test_a_served_endpoint_other_than_the_picked_one_takes_the_load_over(one: One):
    one.load.join(1, endpoint(1))
    reservation = one.load.reserve(0, work())
    reservation.first_token()
    reservation.move(1, work(tokens=400))
    assert one.load.in_flight.tolist() == [0, 1]
    assert one.load.prefill_tokens.tolist() == [0, 400]
    assert one.load.decode_tokens.tolist() == [0, 0]
    reservation.release()
    reservation.move(0, work())
    assert one.load.in_flight.tolist() == [0, 0]


def test_the_end_of_a_former_incarnation_leaves_the_new_one_untouched():
    clock, pool = HandClock(), Pool()
    load = Load(clock)
    pool.on_join(load.join)
    pool.on_leave(load.leave)
    pool.replace([endpoint(0, uid="a")])
    old = load.reserve(0, work())
    pool.replace([])
    pool.replace([endpoint(0, uid="b")])
    new = load.reserve(0, work())
    assert load.live == 2
    old.first_token()
    old.progress(5)
    old.release()
    assert (load.in_flight[0], load.prefill_tokens[0], load.decode_tokens[0]) == (1, 1000, 0)
    new.release()
    new.release()
    assert (load.in_flight[0], load.live) == (0, 0)


def test_no_time_without_a_message_ends_a_reservation(one: One):
    reservations = [one.load.reserve(0, work(shown=i % 2 == 0)) for i in range(50)]
    one.clock.now += 600.0
    one.wait()
    one.load.advance(one.clock.now)
    assert one.load.in_flight[0] == 50
    for reservation in reservations:
        reservation.release()
        reservation.release()
    assert one.load.in_flight[0] == 0
    assert one.wait() == 0.0


class Reservations(RuleBasedStateMachine):
    """Against a plain model: the sums over the reservations that live on each incarnation."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.pool = HandClock(), Pool()
        self.load = Load(self.clock)
        self.pool.on_join(self.load.join)
        self.pool.on_leave(self.load.leave)
        self.uids = [0, 0, 0]
        self.model: dict[Reservation, tuple[int, int, int, int]] = {}
        self._replace()

    def _replace(self) -> None:
        self.pool.replace([endpoint(i, uid=str(uid)) for i, uid in enumerate(self.uids) if uid >= 0])

    def _columns(self) -> list[int]:
        return self.pool.snapshot().columns.tolist()

    @precondition(lambda self: self._columns())
    @rule(
        target=live,
        choice=st.integers(0, 100),
        tokens=st.integers(0, 5000),
        cached=st.integers(0, 5000),
        seconds=st.floats(0, 1000),
        shown=st.booleans(),
    )
    def reserve(self, choice: int, tokens: int, cached: int, seconds: float, shown: bool) -> Reservation:
        columns = self._columns()
        column = columns[choice % len(columns)]
        made = self.load.reserve(column, work(tokens, seconds=seconds, shown=shown, context=tokens + cached))
        self.model[made] = (column, tokens, tokens + cached, 0)
        return made

    @rule(reservation=live)
    def first_token(self, reservation: Reservation) -> None:
        reservation.first_token()

    @rule(reservation=live, tokens=st.integers(0, 100))
    def progress(self, reservation: Reservation, tokens: int) -> None:
        reservation.progress(tokens)

    @rule(reservation=consumes(live), again=st.booleans())
    def release(self, reservation: Reservation, again: bool) -> None:
        for _ in range(2 if again else 1):
            reservation.release()
        self.model.pop(reservation, None)

    @rule(i=st.integers(0, 2))
    def restart(self, i: int) -> None:
        self.uids[i] = abs(self.uids[i]) + 1
        self._forget(i)
        self._replace()

    @rule(i=st.integers(0, 2))
    def vanish(self, i: int) -> None:
        self.uids[i] = -abs(self.uids[i]) - 1
        self._forget(i)
        self._replace()

    def _forget(self, i: int) -> None:
        position = self.pool.snapshot().position.get(endpoint(i).host_port)
        if position is not None:
            gone = self.pool.snapshot().columns[position]
            self.model = {kept: value for kept, value in self.model.items() if value[0] != gone}

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def sums_are_those_of_the_live_ones(self) -> None:
        columns = self.pool.snapshot().columns
        self.load.advance(self.clock.now)
        waits = self.load.view(columns, self.clock.now).wait_seconds
        for column, wait in zip(columns.tolist(), waits.tolist(), strict=True):
            mine = [reservation for reservation, value in self.model.items() if value[0] == column]
            assert self.load.in_flight[column] == len(mine)
            assert self.load.decode_tokens[column] == sum(reservation.decode_tokens for reservation in mine)
            most = sum(reservation.micros for reservation in mine) / 1e6
            assert 0.0 <= wait <= most + 1e-9
            assert 0 <= self.load.prefill_tokens[column] <= sum(self.model[reservation][1] for reservation in mine)

    def teardown(self) -> None:
        for reservation in list(self.model):
            reservation.release()
        assert not self.load.in_flight.any()
        assert not self.load.prefill_tokens.any()
        assert not self.load.decode_tokens.any()
        assert not self.load.view(np.arange(len(self.load.in_flight)), self.clock.now).wait_seconds.any()


TestReservations = Reservations.TestCase
TestReservations.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
