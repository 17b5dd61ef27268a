"""What traffic teaches about a rank: assumptions that end, and chains that find their place."""

import numpy as np
import pytest

from epp.kvcache.assumed import AssumedLimits
from epp.kvcache.events import Skip
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt
from tests.kvcache.publisher import CLEARED, batch, removed, stored

BLOCK = 4
TOKENS = list(range(100, 140))


def prompt(tokens: list[int], **more: str) -> Prompt:
    return Prompt(tokens=np.array(tokens, dtype=np.uint32), **more)


class World:
    def __init__(self, **limits: float) -> None:
        self.index = RunIndex(PrefixKeys())
        self.rank = Rank(self.index, 0, block_size=BLOCK, limits=AssumedLimits(**limits))

    def feed(self, *events: object) -> None:
        for _ in self.rank.feed(batch(*events)):
            pass

    def cached(self, tokens: list[int], **more: str) -> int:
        return int(self.index.match(prompt([*tokens, 1], **more)).cached_tokens[0])


@pytest.fixture
def world() -> World:
    return World(overlay_seconds=30, kept_seconds=600, worker_blocks=8)


def test_a_prompt_on_its_way_counts_until_its_event_should_have_come(world):
    world.rank.assumed.expect(prompt(TOKENS[:18]), BLOCK, now=0)
    assert world.cached(TOKENS[:18]) == 16
    world.rank.assumed.expire(29)
    assert world.cached(TOKENS[:18]) == 16
    world.rank.assumed.expire(30)
    assert world.cached(TOKENS[:18]) == 0
    assert world.rank.assumed.counts.expired == 4


def test_what_events_confirm_does_not_expire(world):
    world.rank.assumed.expect(prompt(TOKENS[:16]), BLOCK, now=0)
    world.feed(stored([1, 2], TOKENS[:8]))
    world.rank.assumed.expire(31)
    assert world.cached(TOKENS) == 8
    world.feed(removed([2]))
    assert world.cached(TOKENS) == 4
    assert world.index.confirmed == 2


def test_only_so_much_is_kept_as_the_worker_can_hold(world):
    other = list(range(500, 540))
    world.rank.assumed.keep(prompt(TOKENS[:24]), 24, BLOCK, now=0)
    world.rank.assumed.keep(prompt(other[:16]), 16, BLOCK, now=1)
    assert world.cached(other) == 16
    assert world.cached(TOKENS) == 16  # the deepest blocks of the older prompt went


def test_what_is_kept_ends_in_time_unless_it_is_used(world):
    world.rank.assumed.keep(prompt(TOKENS[:16]), 16, BLOCK, now=0)
    world.rank.assumed.keep(prompt(TOKENS[:16]), 8, BLOCK, now=500)
    world.rank.assumed.expire(601)
    assert world.cached(TOKENS) == 8


def test_a_report_proves_what_no_event_told(world):
    world.rank.reported(prompt(TOKENS[:18]), 16, now=0)
    assert world.cached(TOKENS) == 16
    world.rank.reported(prompt(TOKENS[:18]), 4, now=1)
    assert world.cached(TOKENS) == 4


def test_a_parked_chain_finds_its_place_by_a_report(world):
    world.feed(stored([11, 12], TOKENS[8:16], parent=10), stored([13], TOKENS[16:20], parent=12))
    assert world.cached(TOKENS) == 0
    world.rank.reported(prompt(TOKENS[:18]), 8, now=0)
    assert world.cached(TOKENS) == 20
    assert world.rank.parked == 0
    assert world.rank.adopted == 1
    world.feed(removed([13]), removed([12]), removed([11]), removed([10]))
    assert world.cached(TOKENS) == 4


def test_a_chain_that_comes_after_the_report_finds_its_place_too(world):
    world.rank.reported(prompt(TOKENS[:18]), 8, now=0)
    world.feed(stored([11, 12], TOKENS[8:16], parent=10))
    assert world.cached(TOKENS) == 16


def test_of_several_ranks_only_the_one_that_goes_on_with_a_prompt_learns_from_its_report(world):
    other = Rank(world.index, 0, block_size=BLOCK, limits=AssumedLimits(kept_seconds=600))
    for rank in (world.rank, other):
        rank.heard(prompt(TOKENS[:18]), 8, now=0)
    assert world.cached(TOKENS) == 0
    for _ in other.feed(batch(stored([11, 12], TOKENS[8:16], parent=10))):
        pass
    assert world.cached(TOKENS) == 16
    assert (world.rank.blocks, other.blocks) == (0, 4)
    other.assumed.expire(601)  # the first block has no hash by which the engine could take it back
    assert world.cached(TOKENS) == 0


@pytest.mark.parametrize(
    ("tokens", "cached", "space"),
    [
        (TOKENS[:18], 4, ""),  # the engine's work began elsewhere
        ([*TOKENS[:8], 0, *TOKENS[9:18]], 8, ""),  # other tokens
        (TOKENS[:10], 8, ""),  # less than a block to compare
        (TOKENS[:18], 8, namespace("sql")),  # another adapter
    ],
)
def test_a_chain_stays_parked_while_its_place_is_unsure(world, tokens, cached, space):
    world.feed(stored([11, 12], TOKENS[8:16], parent=10))
    world.rank.reported(prompt(tokens, namespace=space), cached, now=0)
    assert world.rank.parked == 2
    assert world.cached(TOKENS, namespace=space) <= 8


def test_orphans_wait_for_their_parent(world):
    world.feed(stored([12], TOKENS[4:8], parent=11), stored([13], TOKENS[8:12], parent=12))
    assert world.rank.parked == 2
    assert world.rank.counts.skipped == {Skip.ORPHAN: 2}
    world.feed(stored([11], TOKENS[:4]))
    assert world.cached(TOKENS) == 12
    assert world.rank.parked == 0


def test_what_is_removed_while_parked_does_not_come_back(world):
    world.feed(stored([12, 13], TOKENS[4:12], parent=11), removed([13]))
    world.feed(stored([11], TOKENS[:4]))
    assert world.cached(TOKENS) == 8


def test_only_so_many_orphans_are_kept():
    index = RunIndex(PrefixKeys())
    rank = Rank(index, 0, max_parked=3)
    for i in range(10):
        for _ in rank.feed(batch(stored([100 + i, 200 + i], TOKENS[:8], parent=300 + i))):
            pass
        assert rank.parked <= 3


def test_a_clearing_ends_all_assumptions(world):
    world.rank.assumed.expect(prompt(TOKENS), BLOCK, now=0)
    world.rank.assumed.keep(prompt(TOKENS), 16, BLOCK, now=0)
    world.feed(stored([12], TOKENS[4:8], parent=11), CLEARED)
    assert world.cached(TOKENS) == 0
    assert world.rank.parked == 0
    world.rank.assumed.expire(1000)
    assert world.index.entries == 0


def test_the_block_size_of_events_is_adopted(world):
    world.feed(stored([1, 2], TOKENS[:4], block_size=2))
    assert world.rank.block_size == 2
    world.rank.assumed.expect(prompt(TOKENS[:6]), world.rank.block_size, now=0)
    assert world.cached(TOKENS) == 6


def test_a_long_event_is_brought_in_piece_by_piece(world):
    tokens = list(range(4 * 2000))
    names = list(range(1, 2001))
    steps = list(world.rank.feed(batch(stored(names, tokens))))
    assert len(steps) > 3
    assert world.cached(tokens) == 8000


def another_size(**options: object) -> Rank:
    rank = Rank(RunIndex(PrefixKeys()), 0, block_size=16, **options)
    for _ in rank.feed(batch(stored([1], TOKENS[:4]))):
        pass
    return rank


def test_another_block_size_in_events_is_taken_over():
    rank = another_size()
    assert (rank.block_size, rank.blocks) == (4, 1)


def test_another_block_size_in_events_can_be_forbidden():
    rank = another_size(adopt_block_size=False)
    assert (rank.block_size, rank.blocks) == (16, 0)
    assert rank.counts.skipped == {Skip.BLOCK_SIZE: 1}
    rank.learn_shape(32, None)
    assert rank.block_size == 16


def test_the_size_of_a_cache_is_learnt_from_the_engine():
    rank = Rank(RunIndex(PrefixKeys()), 0, block_size=16)
    rank.learn_shape(4, 2)
    assert rank.block_size == 4
    rank.assumed.keep(Prompt(tokens=np.array(TOKENS[:12], dtype=np.uint32)), 12, rank.block_size, 0.0)
    assert rank.blocks == 2
