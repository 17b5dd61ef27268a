"""Prompts that one replica sent to a worker are found there by the others, and by nobody with other prefix keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.prefix_index import Match
from epp.kvcache.run_index import RunIndex
from epp.peers.group import Group
from epp.peers.prompts import MOST_KEYS, STEP_TOKENS, OwnPrompts, PromptExchange, SentElsewhere
from epp.peers.wire import MOST_PROMPTS, SentPrompt, decode, endpoint_key
from epp.prompts.prompt import Prompt
from epp.scheduling.load import Load
from tests.peers.replicas import endpoint
from tests.scheduling.worlds import HandClock, ToldIndex

SECONDS = 30.0


def prompt(tokens: int, first: int = 0) -> Prompt:
    return Prompt(tokens=np.arange(first, first + tokens, dtype=np.uint32), namespace="model")


class Replica:
    """What one replica hears of prompts; workers 0, 1 and 2 have the columns of `order`."""

    def __init__(
        self, name: int, order: tuple[int, ...], *, secret: bytes = b"s" * 32, most_keys: int = 10_000
    ) -> None:
        self.clock = HandClock()
        self.keys = PrefixKeys(secret)
        self.index = ToldIndex()
        self.others = SentElsewhere(self.index, self._sketch, lambda _column: SECONDS, self.clock, most_keys=most_keys)
        exchange = PromptExchange(
            own=OwnPrompts(self._sketch), others=self.others, secret_id=lambda: self.keys.secret_id
        )
        self.group = Group(Load(self.clock, lambda _prefill: None), name, f"replica-{name}", prompts=exchange)
        self.column = {}
        for column, i in enumerate(order):
            self.column[i] = column
            self.others.join(column, endpoint(i))
            self.group.join(column, endpoint(i))

    def _sketch(self, of: Prompt, step: int) -> np.ndarray:
        return self.keys.of_prompt(of.tokens, of.namespace, step, of.media)

    def picks(self, i: int, sent: Prompt) -> None:
        self.group.picked(self.column[i], sent)

    def tells(self, other: "Replica") -> None:
        while self.group.pending:
            message = self.group.flush()
            assert message is not None
            other.group.receive("link", message, other.clock.now)

    def cached(self, i: int, asked: Prompt) -> int:
        tokens = self.others.match(asked).cached_tokens
        return int(tokens[self.column[i]]) if self.column[i] < len(tokens) else 0


def pair(**fields: object) -> tuple[Replica, Replica]:
    return Replica(1, (0, 1, 2)), Replica(2, (2, 0, 1), **fields)  # type: ignore[arg-type]


def test_a_prompt_that_one_replica_placed_is_found_by_the_other_at_that_worker():
    one, two = pair()
    one.picks(1, prompt(3000))
    one.tells(two)
    assert two.cached(1, prompt(3000)) == 5 * STEP_TOKENS
    assert two.cached(1, prompt(2 * STEP_TOKENS)) == 2 * STEP_TOKENS - 1  # the last token is always computed
    assert two.cached(0, prompt(3000)) == 0
    assert two.cached(1, prompt(3000, first=1)) == 0
    assert two.cached(1, Prompt(tokens=prompt(3000).tokens, namespace="another model")) == 0


def test_it_adds_to_what_events_say_and_never_takes_away():
    one, two = pair()
    two.index.cached = [700, 2900, 0]  # workers 2, 0, 1
    one.picks(1, prompt(3000))
    one.picks(0, prompt(3000))
    one.tells(two)
    assert [two.cached(i, prompt(3000)) for i in (0, 1, 2)] == [2900, 2560, 700]


def test_what_is_shared_by_two_prompts_lasts_as_long_as_the_later_one():
    one, two = pair()
    one.picks(1, prompt(1024))
    one.tells(two)
    two.clock.now += 20
    one.picks(1, prompt(512))
    one.tells(two)
    two.clock.now += 20
    assert two.cached(1, prompt(3000)) == 512
    two.clock.now += 20
    assert two.cached(1, prompt(3000)) == 0
    assert two.others.size == 0


def test_prompts_by_the_keys_of_another_secret_say_nothing():
    one, two = pair(secret=b"t" * 32)
    one.picks(1, prompt(3000))
    one.tells(two)
    assert two.cached(1, prompt(3000)) == 0
    assert two.others.counts.foreign == 1
    assert [peer.same_keys for peer in two.group.peers.values()] == [False]


def test_short_prompts_and_workers_that_are_gone_are_not_told():
    one, _ = pair()
    one.picks(1, prompt(STEP_TOKENS - 1))
    one.group.picked(17, prompt(3000))
    assert not one.group.pending


def test_a_worker_that_left_holds_nothing_though_its_column_goes_to_another():
    one, two = pair()
    one.picks(1, prompt(3000))
    one.tells(two)
    two.others.leave(two.column[1], endpoint(1))
    two.others.join(two.column[1], endpoint(7))
    assert two.cached(1, prompt(3000)) == 0


def test_newer_prompts_crowd_out_older_ones():
    one, two = pair(most_keys=4)
    for first in (0, 10_000, 20_000):
        one.picks(1, prompt(1024, first=first))
    one.tells(two)
    assert [two.cached(1, prompt(2048, first=first)) for first in (0, 10_000, 20_000)] == [0, 1024, 1024]
    assert (two.others.size, two.others.counts.crowded_out) == (4, 2)


def test_many_prompts_go_in_messages_of_a_bounded_size():
    one, _ = pair()
    for first in range(3 * MOST_PROMPTS):
        one.picks(1, prompt(1_000_000 if first == 0 else 600, first=first))
    sizes = []
    while one.group.pending:
        data = one.group.flush()
        assert data is not None
        sizes.append([len(each.keys) // 8 for each in decode(data).prompts])
    assert [len(each) for each in sizes] == [MOST_PROMPTS] * 3
    assert max(sizes[0]) == MOST_KEYS


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=100)), max_size=20))
def test_whatever_a_peer_says_leaves_the_sums_right(said: list[tuple[int, bytes]]):
    others = SentElsewhere(ToldIndex(), lambda _prompt, _step: np.zeros(0, np.uint64), lambda _c: SECONDS, HandClock())
    known = Endpoint(name="w", address="10.0.0.1", port=80)
    others.join(0, known)
    others.heard(
        [SentPrompt(at, keys) for at, keys in said] + [SentPrompt(endpoint_key(known), keys) for _, keys in said]
    )
    assert others.size == sum(len(keys) // 8 for _, keys in said)


@pytest.mark.parametrize("block_size", [16, 64, 48])
def test_the_index_makes_the_same_keys_whether_or_not_it_just_made_those_of_the_blocks(block_size: int):
    asked = prompt(3000)
    index = RunIndex(PrefixKeys(b"k" * 32))
    before = index.sketch(asked, STEP_TOKENS)
    keys = PrefixKeys(b"k" * 32).of_prompt(asked.tokens, asked.namespace, STEP_TOKENS, asked.media)
    assert before.tolist() == keys.tolist()
    index._keys_of(asked, len(asked.tokens) - 1, block_size)
    assert index.sketch(asked, STEP_TOKENS).tolist() == before.tolist()
    assert isinstance(index.match(asked), Match)
