"""The compressed index answers as the naive one does, whatever the events."""

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kvcache.events import Removed, Skip, Stored, Tier
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.naive_index import NaiveIndex
from epp.kvcache.prefix_index import BlockIndex
from epp.kvcache.run_index import RunIndex
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Media, Prompt

KEYS = PrefixKeys(b"a secret for tests")
CREDITS = (1.0, 0.75, 0.5, 0.25)
BLOCK = 2

ranks = st.integers(0, 2)
tiers = st.sampled_from([Tier.GPU] * 6 + [Tier.HOST, Tier.DISK])
chains = st.lists(st.integers(0, 2), min_size=0, max_size=7)
variants = st.sampled_from([0, 0, 0, 1])
store = st.tuples(st.just("store"), ranks, tiers, chains, st.integers(0, 6), variants)
move = st.tuples(st.just("move"), ranks, tiers, chains, st.integers(0, 6), variants)
remove = st.tuples(st.just("remove"), ranks, tiers, chains, st.integers(0, 6), variants)
assume = st.tuples(st.just("assume"), ranks, st.none(), chains, st.integers(0, 14))
name = st.tuples(st.just("name"), ranks, st.none(), chains, variants)
clear = st.tuples(st.sampled_from(["clear", "reopen", "sweep"]), ranks)
operations = st.lists(st.one_of(store, store, store, remove, remove, move, clear, assume, name), max_size=60)


def content(chain: list[int], i: int) -> tuple[int, ...]:
    """Tokens of the block that ends the chain's first `i + 1` links."""
    return tuple(10 * chain[i] + j for j in range(BLOCK))


def hashes(chain: list[int], variant: int) -> list[int]:
    return [hash((tuple(chain[: i + 1]), variant)) & (2**64 - 1) for i in range(len(chain))]


def prompt(chain: list[int]) -> Prompt:
    tokens = [token for i in range(len(chain)) for token in content(chain, i)]
    return Prompt(tokens=np.array([*tokens, 7], dtype=np.uint32))


class Both:
    """Does everything to both indexes."""

    def __init__(self) -> None:
        self.indexes: tuple[BlockIndex, BlockIndex] = (
            NaiveIndex(KEYS, tier_credits=CREDITS),
            RunIndex(KEYS, tier_credits=CREDITS),
        )
        self.ranks = [[index.open(i // 2) for i in range(3)] for index in self.indexes]

    def do(self, operation: tuple) -> None:
        kind, rank = operation[:2]
        answers = [getattr(self, kind)(i, self.indexes[i], rank, *operation[2:]) for i in range(2)]
        assert answers[0] == answers[1]

    def store(self, i, index, rank, tier, chain, first, variant):
        first = min(first, max(len(chain) - 1, 0))
        names = hashes(chain, variant)
        tokens = array("I", [token for j in range(first, len(chain)) for token in content(chain, j)])
        if tokens:
            stored = Stored(names[first:], names[first - 1] if first else None, tokens, BLOCK, tier)
            return index.store(self.ranks[i][rank], stored)
        return None

    def move(self, i, index, rank, tier, chain, first, variant):
        names = hashes(chain, variant)[first:]
        return index.store(self.ranks[i][rank], Stored(names, None, array("I"), 0, tier)) if names else None

    def remove(self, i, index, rank, tier, chain, first, variant):
        index.remove(self.ranks[i][rank], Removed(hashes(chain, variant)[first : first + 2], tier))

    def assume(self, i, index, rank, _, chain, tokens):
        stand_ins = index.assume(self.ranks[i][rank], prompt(chain), tokens, BLOCK)
        if tokens % 3 == 0:
            index.remove(self.ranks[i][rank], Removed(stand_ins[-2:]))
        return stand_ins

    def name(self, i, index, rank, _, chain, variant):
        if chain:
            tokens = len(chain) * BLOCK
            index.name(self.ranks[i][rank], prompt(chain), tokens, BLOCK, hashes(chain, variant)[-1])

    def clear(self, i, index, rank):
        index.clear(self.ranks[i][rank])

    def reopen(self, i, index, rank):
        index.close(self.ranks[i][rank])
        self.ranks[i][rank] = index.open(rank // 2)

    def sweep(self, i, index, rank):
        index.sweep(rank)

    def check(self, chain: list[int]) -> None:
        naive, runs = (index.match(prompt(chain)).cached_tokens.tolist() for index in self.indexes)
        assert naive == runs
        blocks = [[index.blocks(rank) for rank in self.ranks[i]] for i, index in enumerate(self.indexes)]
        assert blocks[0] == blocks[1]


@settings(max_examples=200, deadline=None)
@given(operations, st.lists(chains, min_size=1, max_size=8))
def test_it_answers_as_the_naive_index(steps, prompts):
    both = Both()
    for step in steps:
        both.do(step)
    for chain in prompts + [step[3] for step in steps if len(step) > 3]:
        both.check(chain)
    runs = both.indexes[1]
    assert runs.entries == sum(runs.blocks(rank) for rank in both.ranks[1])
    for rank in both.ranks[1]:
        runs.close(rank)
    assert not runs.sweep(10_000)
    assert not runs._places.runs
    assert not any(forest.heads for forest in runs._places.forests.values())


BRANCH_OUTLIVES_ITS_ROOT = [
    ("store", 0, Tier.GPU, [1, 0], 0, 0),
    ("store", 1, Tier.GPU, [1, 1], 0, 0),
    ("remove", 0, Tier.GPU, [1, 0], 0, 0),
    ("remove", 1, Tier.GPU, [1], 0, 0),
    ("store", 2, Tier.GPU, [1, 1], 0, 0),
    ("store", 1, Tier.GPU, [1], 0, 0),
    ("store", 1, Tier.GPU, [1, 1], 0, 1),
]


@pytest.mark.parametrize("steps", range(1, len(BRANCH_OUTLIVES_ITS_ROOT) + 1))
def test_a_branch_that_outlives_its_root_is_found_when_the_root_comes_back(steps):
    both = Both()
    for step in BRANCH_OUTLIVES_ITS_ROOT[:steps]:
        both.do(step)
    both.check([1, 1])


@pytest.fixture(params=[NaiveIndex, RunIndex])
def index(request) -> BlockIndex:
    return request.param(KEYS)


def stored(names: list[int], tokens: list[int], parent: int | None = None, block_size: int = 4, **more) -> Stored:
    return Stored(names, parent, array("I", tokens), block_size, **more)


def cached(index: BlockIndex, tokens: list[int], **more) -> list[int]:
    return index.match(Prompt(tokens=np.array(tokens, dtype=np.uint32), **more)).cached_tokens.tolist()


TOKENS = list(range(16))


def test_a_prompt_is_never_wholly_cached(index):
    index.store(index.open(0), stored([1, 2, 3, 4], TOKENS))
    assert cached(index, TOKENS) == [12]
    assert cached(index, [*TOKENS, 5]) == [16]
    assert cached(index, TOKENS[:4]) == [0]
    assert cached(index, []) == [0]


def test_each_copy_has_its_own_removal(index):
    rank = index.open(0)
    index.store(rank, stored([1, 2], TOKENS[:8]))
    index.store(rank, stored([2], TOKENS[4:8], parent=1))
    index.remove(rank, Removed([2]))
    assert cached(index, TOKENS) == [8]
    index.remove(rank, Removed([2]))
    assert cached(index, TOKENS) == [4]
    index.remove(rank, Removed([2]))
    assert cached(index, TOKENS) == [4]


def test_a_block_stored_again_in_the_middle_brings_back_what_follows(index):
    rank = index.open(0)
    index.store(rank, stored([1, 2, 3], TOKENS[:12]))
    index.remove(rank, Removed([2]))
    assert cached(index, TOKENS) == [4]
    index.store(rank, stored([2], TOKENS[4:8], parent=1))
    assert cached(index, TOKENS) == [12]


def test_one_block_may_have_two_hashes(index):
    rank = index.open(0)
    index.store(rank, stored([1], TOKENS[:4]))
    index.store(rank, stored([9], TOKENS[:4]))
    index.remove(rank, Removed([1]))
    assert cached(index, TOKENS) == [4]
    assert index.store(rank, stored([2], TOKENS[4:8], parent=9)) is None
    assert cached(index, TOKENS) == [8]


def test_namespaces_do_not_mix(index):
    index.store(index.open(0), stored([1, 2], TOKENS[:8], adapter="sql", salt="mine"))
    assert cached(index, TOKENS) == [0]
    assert cached(index, TOKENS, namespace=namespace("sql")) == [0]
    assert cached(index, TOKENS, namespace=namespace("sql", "mine")) == [8]


def test_media_are_part_of_what_is_cached(index):
    index.store(index.open(0), stored([1, 2, 3], TOKENS[:12], media=(Media("cat", 6),)))
    assert cached(index, TOKENS) == [4]
    assert cached(index, TOKENS, media=(Media("cat", 6),)) == [12]
    assert cached(index, TOKENS, media=(Media("cat", 7),)) == [4]
    assert cached(index, TOKENS, media=(Media("dog", 6),)) == [4]


def test_workers_may_have_different_block_sizes(index):
    index.store(index.open(0), stored([1, 2], TOKENS[:8]))
    index.store(index.open(1), stored([1], TOKENS[:8], block_size=8))
    index.store(index.open(2), stored([1, 2, 3], TOKENS[:6], block_size=2))
    assert cached(index, TOKENS) == [8, 8, 6]
    assert cached(index, TOKENS[:8]) == [4, 0, 6]


def test_an_assumed_block_gives_way_to_the_one_that_an_event_names(index):
    rank = index.open(0)
    prompt = Prompt(tokens=np.array(TOKENS, dtype=np.uint32))
    stand_ins = index.assume(rank, prompt, 16, 4)
    assert len(stand_ins) == 4
    assert cached(index, [*TOKENS, 1]) == [16]
    index.store(rank, stored([1, 2], TOKENS[:8]))
    index.remove(rank, Removed(stand_ins))
    assert cached(index, TOKENS) == [8]
    index.remove(rank, Removed([2]))
    assert cached(index, TOKENS) == [4]
    assert index.assume(rank, prompt, 4, 4) == []


def test_a_chain_goes_on_behind_a_block_that_was_named(index):
    rank = index.open(0)
    index.name(rank, Prompt(tokens=np.array(TOKENS, dtype=np.uint32)), 8, 4, 77)
    assert index.store(rank, stored([78], TOKENS[8:12], parent=77)) is None
    assert cached(index, TOKENS) == [12]
    index.remove(rank, Removed([77]))
    assert cached(index, TOKENS) == [4]


def test_ranks_behind_one_endpoint_count_once(index):
    first, second = index.open(1), index.open(1)
    index.store(first, stored([1], TOKENS[:4]))
    index.store(second, stored([1, 2], TOKENS[:8]))
    assert cached(index, TOKENS) == [0, 8]
    index.close(second)
    assert cached(index, TOKENS) == [0, 4]


def test_an_unknown_parent_is_reported(index):
    assert index.store(index.open(0), stored([2], TOKENS[4:8], parent=1)) is Skip.ORPHAN


def test_tokens_behind_the_bound_are_not_indexed():
    for index in (NaiveIndex(PrefixKeys(max_tokens=8)), RunIndex(PrefixKeys(max_tokens=8))):
        assert index.store(index.open(0), stored([1, 2, 3], TOKENS[:12])) is Skip.TOO_LONG


def test_a_hash_that_comes_back_with_other_content_is_believed(index):
    rank = index.open(0)
    index.store(rank, stored([1, 2], TOKENS[:8]))
    index.store(rank, stored([2], [5, 5, 5, 5], parent=1))
    assert cached(index, TOKENS) == [4]
    assert cached(index, [*TOKENS[:4], 5, 5, 5, 5, 1]) == [8]


def test_beyond_the_cap_the_ends_of_prefixes_go_first():
    index = RunIndex(KEYS, max_blocks=1000)
    rank = index.open(0)
    tokens = list(range(4 * 2000))
    parent = None
    for first in range(0, 2000, 10):
        names = list(range(first + 1, first + 11))
        if index.store(rank, stored(names, tokens[4 * first : 4 * first + 40], parent)) is None:
            parent = names[-1]
    assert 0 < index.entries <= 1000
    assert index.evicted
    assert cached(index, tokens) == [4 * index.entries]


def test_tiers_have_their_credit():
    for index in (NaiveIndex(KEYS, tier_credits=CREDITS), RunIndex(KEYS, tier_credits=CREDITS)):
        rank = index.open(0)
        index.store(rank, stored([1, 2], TOKENS[:8]))
        index.store(rank, Stored([2], None, array("I"), 0, Tier.HOST))
        index.remove(rank, Removed([2]))
        assert cached(index, TOKENS) == [4 + 3]
        index.remove(rank, Removed([2], Tier.HOST))
        assert cached(index, TOKENS) == [4]
        assert index.store(rank, Stored([99], None, array("I"), 0, Tier.HOST)) is Skip.NO_TOKENS
