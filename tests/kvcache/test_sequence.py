"""Batches come into order whatever the sockets do: gaps, repetitions, lost replays, restarts."""

import random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kvcache.sequence import Offer, Sequence


class Output:
    """Remembers what the sequence made happen."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.asked: list[int] = []
        self.decisions: list[str] = []

    def apply(self, seq: int, payload: bytes) -> None:
        self.applied.append(payload)

    def accept(self) -> None:
        self.decisions.append("accepted")

    def refuse(self) -> None:
        self.decisions.append("refused")

    def forget(self) -> None:
        self.applied.clear()

    def ask_replay(self, start: int) -> None:
        self.asked.append(start)


def batches(count: int, process: str = "a") -> list[bytes]:
    return [f"{process}{i}".encode() for i in range(count)]


def started(*, can_replay: bool = True, known: int = 3, max_held: int = 100) -> tuple[Sequence, Output]:
    """A sequence that has seen the first `known` batches of process a."""
    output = Output()
    sequence = Sequence(output, can_replay=can_replay, max_held=max_held)
    sequence.connected()
    sequence.replay_ended()
    for seq, payload in enumerate(batches(known)):
        sequence.live(seq, payload)
    output.asked.clear()
    return sequence, output


def replay(sequence: Sequence, output: Output, payloads: list[bytes], *, oldest: int = 0) -> None:
    """Answer the last request; a new request ends the answer, as it closes the socket."""
    requests = len(output.asked)
    for seq in range(max(output.asked[-1], oldest), len(payloads)):
        sequence.replayed(seq, payloads[seq])
        if len(output.asked) > requests:
            return
    sequence.replay_ended()


def test_live_batches_are_applied_in_order():
    sequence, output = started()
    assert output.applied == batches(3)
    assert sequence.complete


def test_a_gap_asks_from_the_last_known_batch_and_applies_each_once():
    sequence, output = started()
    sequence.live(5, b"a5")
    assert output.asked == [2]
    assert output.applied == batches(3)
    replay(sequence, output, batches(7))
    assert output.applied == batches(7)
    sequence.live(6, b"a6")
    assert output.applied == batches(7)
    assert sequence.counts.lost == 0


def test_live_batches_wait_for_the_replay():
    sequence, output = started()
    sequence.live(5, b"a5")
    sequence.replayed(2, b"a2")
    sequence.live(6, b"a6")
    sequence.replayed(3, b"a3")
    assert output.applied == batches(4)
    sequence.replayed(4, b"a4")
    sequence.replay_ended()
    assert output.applied == batches(7)


def test_a_replay_that_loses_batches_is_asked_again_from_the_hole():
    sequence, output = started()
    sequence.live(9, b"a9")
    for seq in (2, 3, 6, 7, 8):
        sequence.replayed(seq, b"a%d" % seq)
    sequence.replay_ended()
    assert output.asked == [2, 3]
    replay(sequence, output, batches(10))
    assert output.applied == batches(10)
    assert sequence.complete


def test_a_replay_whose_end_is_lost_is_asked_again_though_nothing_newer_shows_the_loss():
    output = Output()
    sequence = Sequence(output, can_replay=True)
    sequence.connected()
    replay(sequence, output, batches(1500)[:1000])
    assert output.asked == [0, 999]
    assert sequence.replaying
    replay(sequence, output, batches(1500))
    assert output.applied == batches(1500)
    assert not sequence.replaying


def test_a_hole_is_final_after_one_more_replay():
    sequence, output = started()
    sequence.live(4, b"a4")
    for _ in range(2):
        assert output.applied == batches(3)
        sequence.replayed(2, b"a2")
        sequence.replayed(4, b"a4")
        sequence.replay_ended()
    assert output.applied == [*batches(3), b"a4"]
    assert sequence.counts.lost == 1
    assert not sequence.replaying


def test_another_process_that_passed_our_number_is_recognised():
    sequence, output = started()
    sequence.live(9, b"b9")
    replay(sequence, output, batches(10, "b"))
    replay(sequence, output, batches(10, "b"))
    assert output.applied == batches(10, "b")
    assert sequence.counts.restarts == 1


def test_a_process_without_our_last_batch_is_another_one():
    sequence, output = started()
    sequence.connected()
    assert output.asked == [2]
    sequence.replay_ended()
    assert output.applied == []
    assert output.asked == [2, 0]
    replay(sequence, output, batches(2, "b"))
    assert output.applied == batches(2, "b")


def test_what_the_replay_buffer_no_longer_proves_is_forgotten():
    sequence, output = started()
    sequence.live(9, b"a9")
    replay(sequence, output, batches(10), oldest=6)
    replay(sequence, output, batches(10), oldest=6)
    assert output.applied == batches(10)[6:]
    assert not sequence.complete


def test_a_number_that_goes_back_is_a_restart():
    for can_replay in (True, False):
        sequence, output = started(can_replay=can_replay)
        sequence.live(0, b"b0")
        assert output.applied == [b"b0"]
        assert sequence.complete
    sequence, output = started()
    sequence.live(1, b"b1")
    replay(sequence, output, batches(2, "b"))
    assert output.applied == batches(2, "b")


def test_a_restart_during_a_replay_is_noticed():
    sequence, output = started()
    sequence.live(5, b"a5")
    sequence.live(0, b"b0")
    assert not sequence.replaying
    assert output.applied == [b"b0"]


def test_a_repeated_batch_changes_nothing():
    sequence, output = started()
    sequence.live(1, b"a1")
    assert output.applied == batches(3)
    assert sequence.counts.repeated == 1


def test_without_replay_a_gap_is_lost_but_the_rest_counts():
    sequence, output = started(can_replay=False)
    sequence.live(5, b"a5")
    assert output.applied == [*batches(3), b"a5"]
    assert sequence.counts.lost == 2
    assert not sequence.complete


def test_without_replay_a_gap_over_a_cut_connection_may_hide_a_restart():
    sequence, output = started(can_replay=False)
    sequence.connected()
    sequence.live(3, b"a3")
    assert output.applied == batches(4)  # goes on where it stopped: the same process
    sequence.connected()
    sequence.live(9, b"?9")
    assert output.applied == [b"?9"]


def test_replays_that_nobody_answers_stop_holding_up_live_batches():
    sequence, output = started()
    for seq in (4, 6, 8):
        sequence.live(seq, b"a%d" % seq)
        sequence.replay_timed_out()
    assert output.applied == [*batches(3), b"a4", b"a6", b"a8"]
    sequence.live(10, b"a10")
    assert not sequence.replaying
    assert output.applied[-1] == b"a10"
    sequence.connected()
    assert sequence.replaying


def torn() -> tuple[Sequence, Output]:
    sequence, output = started()
    sequence.live(4, b"a4")
    sequence.replay_timed_out()
    assert output.applied == [*batches(3), b"a4"]
    return sequence, output


def test_what_unanswered_replays_left_is_mended_when_all_batches_are_there():
    sequence, output = torn()
    sequence.mend()
    sequence.live(5, b"a5")
    replay(sequence, output, batches(5))
    assert output.applied == batches(6)
    assert sequence.complete
    sequence.mend()
    assert not sequence.replaying


def test_what_no_first_replay_brought_is_fetched_later():
    output = Output()
    sequence = Sequence(output, can_replay=True)
    sequence.connected()
    sequence.live(7, b"a7")
    sequence.replay_timed_out()
    assert output.applied == [b"a7"]
    assert not sequence.complete
    assert sequence.mend()
    for seq in range(5, 8):  # what the publisher's buffer still has goes further back than what came live
        sequence.replayed(seq, b"a%d" % seq)
    sequence.replay_ended()
    assert output.applied == [b"a5", b"a6", b"a7"]
    assert not sequence.mend()


def test_what_cannot_be_mended_is_kept():
    sequence, output = torn()
    sequence.mend()
    sequence.live(5, b"a5")
    sequence.replayed(1, b"a1")
    assert output.applied == [*batches(3), b"a4", b"a5"]
    sequence.mend()
    assert not sequence.replaying


def test_mending_without_an_answer_changes_nothing():
    sequence, output = torn()
    sequence.mend()
    sequence.live(5, b"a5")
    sequence.replay_timed_out()
    assert output.applied == [*batches(3), b"a4", b"a5"]


def test_a_replay_that_takes_too_long_is_given_up():
    sequence, output = started(max_held=5)
    for seq in range(5, 12):
        sequence.live(seq, b"a%d" % seq)
    assert not sequence.replaying
    assert output.applied == [*batches(3), *batches(12)[5:]]


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_with_replay_the_end_is_exact(draw: random.Random, lossy: bool):
    """Losses, repetitions and restarts at random; when it is quiet again, exactly the living process counts."""
    output = Output()
    sequence = Sequence(output, can_replay=True)
    process, sent = 0, []
    sequence.connected()

    def answer() -> None:
        while sequence.replaying:
            history = list(enumerate(sent))[output.asked[-1] :]
            requests = len(output.asked)
            lost = lossy and draw.random() < 0.5
            for seq, payload in history:
                if lost and draw.random() < 0.3 and seq != output.asked[-1]:
                    continue
                sequence.replayed(seq, payload)
                if len(output.asked) > requests:
                    break
            else:
                sequence.replay_ended()

    answer()
    for _ in range(draw.randrange(60)):
        event = draw.random()
        if event < 0.05:
            process, sent = process + 1, []
            if draw.random() < 0.5:
                sent.extend(b"p%d-%d" % (process, i) for i in range(draw.randrange(30)))
            sequence.connected()
        elif event < 0.6:
            sent.append(b"p%d-%d" % (process, len(sent)))
            if draw.random() < 0.8:
                sequence.live(len(sent) - 1, sent[-1])
        elif event < 0.7 and sent:
            sequence.live(len(sent) - 1, sent[-1])
        else:
            answer()
    sent.append(b"last %d" % process)
    sequence.live(len(sent) - 1, sent[-1])
    answer()
    if not lossy:
        assert output.applied == sent
        assert sequence.counts.lost == 0
    else:
        assert output.applied[-1] == sent[-1]
        assert set(output.applied) <= set(sent)
        assert len(output.applied) == len(set(output.applied))


def offered(*, can_replay: bool, known: int = 5, process: str = "a") -> tuple[Sequence, Output]:
    """A new sequence that somebody tells of the first `known` batches of a process."""
    output = Output()
    sequence = Sequence(output, can_replay=can_replay)
    if not can_replay:
        sequence.hold()
        sequence.connected()
    digests = {seq: xxhash.xxh3_64_intdigest(payload) for seq, payload in enumerate(batches(known, process))}
    sequence.offer(Offer(known - 1, digests, complete=True))
    return sequence, output


def test_an_offer_is_taken_when_the_replay_shows_its_last_batch():
    sequence, output = offered(can_replay=True)
    sequence.connected()
    assert output.asked == [4]
    replay(sequence, output, batches(7))
    assert output.decisions == ["accepted"]
    assert output.applied == [b"a5", b"a6"]
    assert sequence.complete


def test_an_offer_of_another_process_is_refused_and_all_is_replayed():
    sequence, output = offered(can_replay=True, process="b")
    sequence.connected()
    while sequence.replaying:
        replay(sequence, output, batches(7))
    assert output.decisions == ["refused"]
    assert output.applied == batches(7)


def test_an_offer_of_a_process_that_was_restarted_since_is_refused():
    sequence, output = offered(can_replay=True, process="b")
    sequence.connected()
    while sequence.replaying:
        replay(sequence, output, batches(3))
    assert output.decisions == ["refused"]
    assert output.applied == batches(3)


def test_an_offer_that_the_replay_buffer_does_not_reach_is_refused():
    sequence, output = offered(can_replay=True)
    sequence.connected()
    while sequence.replaying:
        replay(sequence, output, batches(20), oldest=10)
    assert output.decisions == ["refused"]
    assert output.applied == batches(20)[10:]
    assert not sequence.complete


def test_an_offer_is_refused_when_nobody_answers():
    sequence, output = offered(can_replay=True)
    sequence.connected()
    sequence.live(6, b"a6")
    sequence.replay_timed_out()
    while sequence.replaying:
        sequence.replay_timed_out()
    assert output.decisions == ["refused"]
    assert output.applied == [b"a6"]


def test_without_replay_an_offer_must_join_what_was_held():
    sequence, output = offered(can_replay=False)
    for seq in (3, 4, 5, 6):
        sequence.live(seq, b"a%d" % seq)
    assert output.applied == []
    sequence.release()
    assert output.decisions == ["accepted"]
    assert output.applied == [b"a5", b"a6"]
    assert sequence.complete
    sequence.live(7, b"a7")
    assert output.applied == [b"a5", b"a6", b"a7"]


@pytest.mark.parametrize("held", [[6, 7], [3, 4], [0, 1, 2]])
def test_without_replay_an_offer_that_does_not_join_is_refused(held):
    sequence, output = offered(can_replay=False, process="b")
    for seq in held:
        sequence.live(seq, b"a%d" % seq)
    sequence.release()
    assert output.decisions == ["refused"]
    assert output.applied == [b"a%d" % seq for seq in held]


def test_without_an_offer_what_was_held_goes_on():
    output = Output()
    sequence = Sequence(output, can_replay=False)
    sequence.hold()
    sequence.connected()
    sequence.live(0, b"a0")
    sequence.release()
    assert output.applied == [b"a0"]
    assert sequence.complete
