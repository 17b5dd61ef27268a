"""Each replica ends up with the sum of all reservations, whatever is lost on the way, and never counts one twice."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epp.peers.group import GroupRules
from epp.scheduling.load import Reservation
from tests.peers.replicas import Replica, World, work

EVERYWHERE = range(3)


def two() -> tuple[World, Replica, Replica]:
    one, other = Replica(1, (0, 1, 2)), Replica(2, (2, 0, 1))
    world = World(one, other)
    world.beats(2)
    return world, one, other


def test_a_pick_is_load_for_the_other_replica_until_it_ends():
    world, one, other = two()
    reservation = one.reserve(0, work(1000, seconds=2.0))
    one.flush()
    world.deliver()
    assert other.sums(0) == (1, 1000, 0, pytest.approx(2.0))
    reservation.first_token()
    reservation.progress(32)
    one.flush()
    world.deliver()
    assert other.sums(0) == (1, 0, 1032, 0.0)
    reservation.release()
    one.flush()
    world.deliver()
    assert other.sums(0) == one.sums(0) == (0, 0, 0, 0.0)


def test_the_first_tokens_of_others_teach_rates_too():
    world, one, other = two()
    reservation = one.reserve(1, work(500, seconds=1.0))
    one.flush()
    world.deliver()
    for replica in (one, other):
        replica.clock.now += 0.8
    reservation.first_token()
    one.flush()
    world.deliver()
    assert [(seen.prefill_tokens, pytest.approx(0.8)) for seen in other.seen] == [(500, 0.8)]


def test_what_was_learnt_late_teaches_nothing():
    world, one, other = two()
    reservation = one.reserve(1, work(500, seconds=1.0))
    one.flush()
    world.deliver()
    reservation.first_token()
    one.flush()
    world.deliver(lambda _of, _at: False)
    world.beats(2)
    assert other.sums(1) == one.sums(1) == (1, 0, 500, 0.0)
    assert other.seen == []


def test_prefill_on_another_worker_is_load_there():
    world, one, other = two()
    first = one.reserve(0, work(800, seconds=3.0))
    main = one.reserve(1, work(0, seconds=0.0), prefill=first)
    one.flush()
    world.deliver()
    assert other.sums(0) == (1, 800, 0, pytest.approx(3.0))
    assert other.sums(1) == (1, 0, 0, 0.0)
    main.first_token()
    one.flush()
    world.deliver()
    assert [other.sums(i) for i in EVERYWHERE] == [one.sums(i) for i in EVERYWHERE]
    assert other.sums(0) == (0, 0, 0, 0.0)


def test_the_load_goes_where_the_gateway_says_the_request_went():
    world, one, other = two()
    reservation = one.reserve(0)
    one.flush()
    world.deliver()
    column = one.column(2)
    assert column is not None
    reservation.move(column, work(700, seconds=0.5))
    one.flush()
    world.deliver()
    assert other.sums(0) == (0, 0, 0, 0.0)
    assert other.sums(2) == (1, 700, 0, pytest.approx(0.5))


def test_load_on_an_endpoint_that_is_not_known_yet_waits_for_it():
    one, other = Replica(1, (0, 1)), Replica(2, (0,))
    world = World(one, other)
    world.beats(2)
    one.reserve(1)
    one.flush()
    world.deliver()
    other.pool.replace(one.pool.snapshot().endpoints)
    assert other.sums(1) == (1, 1000, 0, pytest.approx(1.0))
    other.pool.replace(one.pool.snapshot().endpoints[:1])
    other.pool.replace(one.pool.snapshot().endpoints)
    assert other.sums(1)[0] == 1, "a worker that is back in the pool has its load again"


def test_a_silent_peer_keeps_its_load_until_its_beats_stop_for_long_enough():
    world, one, other = two()
    one.reserve(0)
    one.flush()
    world.deliver()
    for _ in range(3):
        other.beat()
    assert other.sums(0)[0] == 1
    other.beat()
    assert other.sums(0)[0] == 0
    assert other.group.counts.vanished == 1


def test_a_peer_that_comes_back_after_a_stop_is_counted_once():
    world, one, other = two()
    one.reserve(0)
    world.beats(1)
    world.beats(6, lambda _of, _at: False)
    assert other.sums(0)[0] == 0
    assert one.sums(0)[0] == 1
    world.beats(3)
    assert other.sums(0)[0] == one.sums(0)[0] == 1


def test_a_peer_that_leaves_in_good_order_takes_its_load_along_at_once():
    world, one, other = two()
    one.reserve(0)
    one.beat(leaving=True)
    world.deliver()
    assert other.sums(0)[0] == 0
    assert not other.group.peers


def test_a_late_joiner_hears_what_is_there_already():
    one, other = Replica(1, (0, 1, 2)), Replica(2, (0, 1, 2))
    for i in range(500):
        one.reserve(i % 3)
    one.flush()
    one.out.clear()
    World(one, other).beats(2)
    assert [other.sums(i)[0] for i in EVERYWHERE] == [one.sums(i)[0] for i in EVERYWHERE]


def test_lag_is_told_without_comparing_clocks():
    world, one, other = two()
    one.beat()
    one.clock.now += 0.010
    other.clock.now += 0.010
    world.deliver()
    other.clock.now += 0.100
    one.clock.now += 0.100
    other.beat()
    one.clock.now += 0.010
    world.deliver()
    assert one.group.peers[2].lag == pytest.approx(0.010, abs=0.001)


def test_a_message_that_comes_over_two_links_counts_once():
    _, one, other = two()
    one.reserve(0)
    one.flush()
    (data,) = one.out
    for link in ("link-1", "link-1", "another"):
        other.group.receive(link, data, other.clock.now)
    assert other.sums(0)[0] == 1


def test_more_than_the_bounds_allow_is_counted_not_kept():
    one, other = Replica(1, (0,)), Replica(2, (0,), rules=GroupRules(most_reservations=10, most_peers=1))
    world = World(one, other, Replica(3, (0,)))
    for _ in range(20):
        one.reserve(0)
    world.beats(3)
    assert other.sums(0)[0] == 10
    assert other.group.peers[1].mirror.refused
    assert other.group.counts.strangers


class Sharing(RuleBasedStateMachine):
    """Three replicas, one of which knows fewer endpoints, over links that lose any message."""

    @initialize()
    def start(self) -> None:
        self.replicas = [Replica(1, (0, 1, 2)), Replica(2, (1, 2, 0)), Replica(3, (2, 0))]
        self.world = World(*self.replicas)
        self.live: list[tuple[Replica, int, Reservation]] = []

    @rule(at=st.integers(0, 2), i=st.integers(0, 2), shown=st.booleans(), split=st.booleans())
    def reserve(self, at: int, i: int, shown: bool, split: bool) -> None:
        replica = self.replicas[at]
        if replica.column(i) is None:
            return
        prefill = replica.reserve(0, work(300, seconds=0.3)) if split else None
        tokens = 0 if split else 100 * (i + 1)
        reservation = replica.reserve(i, work(tokens, seconds=tokens / 1e3, shown=shown), prefill=prefill)
        self.live.append((replica, i, reservation))

    @rule(which=st.integers(0, 1000), tokens=st.integers(1, 50))
    def go_on(self, which: int, tokens: int) -> None:
        if self.live:
            reservation = self.live[which % len(self.live)][2]
            reservation.first_token()
            reservation.progress(tokens)

    @rule(which=st.integers(0, 1000))
    def end(self, which: int) -> None:
        if self.live:
            self.live.pop(which % len(self.live))[2].release()

    @rule(which=st.integers(0, 1000), to=st.integers(0, 2))
    def move(self, which: int, to: int) -> None:
        if self.live:
            at = which % len(self.live)
            replica, _, reservation = self.live[at]
            column = replica.column(to)
            if column is not None:
                reservation.move(column, work(50, seconds=0.05))
                self.live[at] = (replica, to, reservation)

    @rule()
    def flush(self) -> None:
        for replica in self.replicas:
            replica.flush()

    @rule(loss=st.sampled_from((0.0, 0.1, 0.5, 1.0)), seed=st.integers(0, 99))
    def deliver(self, loss: float, seed: int) -> None:
        draw = random.Random(seed)
        self.world.deliver(lambda _of, _at: draw.random() >= loss)

    @rule(i=st.sampled_from((0, 1)))
    def a_worker_leaves_one_replica_and_comes_back(self, i: int) -> None:
        replica = self.replicas[2]
        if any(owner is replica for owner, _, _ in self.live):
            return  # its own load is gone with the worker, by the rules of `Load`
        known = replica.pool.snapshot().endpoints
        replica.pool.replace(each for each in known if each.name != f"w{i}")
        replica.pool.replace(self.replicas[0].pool.snapshot().endpoints)

    @rule(loss=st.sampled_from((0.1, 0.3)), seed=st.integers(0, 99))
    def time_passes(self, loss: float, seed: int) -> None:
        draw = random.Random(seed)
        self.world.beats(1, lambda _of, _at: draw.random() >= loss)

    @invariant()
    def nothing_is_negative(self) -> None:
        for replica in getattr(self, "replicas", ()):
            load = replica.load
            assert (load.in_flight >= 0).all()
            assert (load.prefill_tokens >= 0).all()
            assert (load.decode_tokens >= 0).all()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for replica in self.replicas:
            replica.clock.now += 1000.0  # prefills that nobody sees end by each replica's own clock
        self.world.beats(4)
        prefills = [each.prefill for _, _, each in self.live if each.prefill is not None]
        for i in EVERYWHERE:
            expected = sum(at == i for _, at, _ in self.live) + (i == 0) * sum(not each.released for each in prefills)
            assert {each.sums(i)[0] for each in self.replicas if each.column(i) is not None} == {expected}
        for _, _, reservation in self.live:
            reservation.release()
        self.world.beats(3)
        for replica in self.replicas:
            assert not replica.load.in_flight.any()
            assert not replica.load.prefill_tokens.any()
            assert not replica.load.decode_tokens.any()


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_requests_that_others_placed_are_counted_though_messages_are_lost():
    world, one, other = two()
    one.load.picks = 3
    one.beat()
    world.deliver()
    before = other.load.picks_elsewhere
    one.load.picks = 5
    one.beat()
    world.deliver(lambda _of, _at: False)
    one.load.picks = 9
    one.beat()
    world.deliver()
    assert other.load.picks_elsewhere - before == 6
    assert one.load.picks_elsewhere == 0
