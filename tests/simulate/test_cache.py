"""The simulated worker's block cache, against what any paged prefix cache must keep true."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.simulate.engine.cache import BlockCache, Cleared, Namespace, Removed, Sequence, Stored

SIZE = 4


def run(cache: BlockCache, tokens: list[int], answer: int = 0, namespace: Namespace | None = None) -> int:
    """One request from begin to end; returns its cached tokens."""
    sequence = Sequence(list(tokens), cache.block_size, namespace or Namespace())
    cached = cache.begin(sequence, answer)
    assert cached is not None
    cache.store(sequence, len(tokens))
    cache.end(sequence)
    return cached


def test_a_second_equal_prompt_computes_only_its_last_block() -> None:
    cache = BlockCache(blocks=16, block_size=SIZE)
    assert run(cache, list(range(12))) == 0
    assert run(cache, list(range(12))) == 8
    assert run(cache, list(range(13))) == 12


def test_each_physical_copy_has_its_own_store_and_removal() -> None:
    cache = BlockCache(blocks=16, block_size=SIZE)
    run(cache, list(range(8)))
    run(cache, list(range(8)))
    stored = [event for event in cache.events if isinstance(event, Stored)]
    assert [len(event.hashes) for event in stored] == [2, 1]
    assert stored[1].parent == stored[0].hashes[0]
    assert stored[1].hashes == stored[0].hashes[1:]
    assert {block.hash: block.copies for block in cache.residents()} == {
        stored[0].hashes[0]: 1,
        stored[0].hashes[1]: 2,
    }


def test_a_full_cache_gives_up_the_least_recent_tail_first() -> None:
    cache = BlockCache(blocks=4, block_size=SIZE)
    run(cache, list(range(8)))
    run(cache, list(range(100, 108)))
    first = next(event for event in cache.events if isinstance(event, Stored))
    cache.events.clear()
    run(cache, list(range(200, 204)))
    assert [event for event in cache.events if isinstance(event, Removed)] == [Removed(first.hashes[1])]


def test_blocks_in_use_are_never_given_away() -> None:
    cache = BlockCache(blocks=3, block_size=SIZE)
    running = Sequence(list(range(8)), SIZE)
    assert cache.begin(running, 1) == 0
    assert cache.begin(Sequence([1, 2, 3, 4], SIZE), 0) is None
    cache.end(running)
    assert cache.begin(Sequence([1, 2, 3, 4], SIZE), 0) == 0


def test_blocks_for_the_answer_are_taken_as_it_grows_and_are_always_there() -> None:
    cache = BlockCache(blocks=4, block_size=SIZE)
    run(cache, list(range(8)))
    cache.events.clear()
    sequence = Sequence([1, 2, 3, 4], SIZE)
    assert cache.begin(sequence, 12) == 0
    assert cache.events == []
    assert cache.begin(Sequence([5], SIZE), 0) is None
    for token in range(12):
        sequence.tokens.append(token)
        cache.store(sequence, len(sequence.tokens))
    assert sum(isinstance(event, Removed) for event in cache.events) == 2
    cache.end(sequence)
    assert cache.begin(Sequence([5] * 16, SIZE), 0) == 0


def test_answer_tokens_become_reusable_as_blocks_fill() -> None:
    cache = BlockCache(blocks=8, block_size=SIZE)
    sequence = Sequence([1, 2, 3], SIZE)
    cache.begin(sequence, 6)
    cache.store(sequence, 3)
    sequence.tokens += [4, 5, 6, 7, 8, 9]
    cache.store(sequence, len(sequence.tokens) - 1)
    cache.end(sequence)
    assert run(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 8


def test_namespaces_share_nothing() -> None:
    cache = BlockCache(blocks=16, block_size=SIZE)
    tokens = list(range(9))
    run(cache, tokens)
    assert run(cache, tokens, namespace=Namespace(lora="a")) == 0
    assert run(cache, tokens, namespace=Namespace(salt="a")) == 0
    assert run(cache, tokens, namespace=Namespace(salt="a")) == 8


def test_reset_waits_for_running_sequences() -> None:
    cache = BlockCache(blocks=8, block_size=SIZE)
    sequence = Sequence(list(range(8)), SIZE)
    cache.begin(sequence, 1)
    cache.store(sequence, 8)
    assert not cache.clear()
    cache.end(sequence)
    cache.events.clear()
    assert cache.clear()
    assert cache.events == [Cleared()]
    assert cache.residents() == []


@settings(deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=14), st.integers(1, 5), st.booleans()), max_size=40
    )
)
def test_events_say_exactly_what_is_resident_and_what_hits(prompts: list[tuple[list[int], int, bool]]) -> None:
    cache = BlockCache(blocks=9, block_size=2)
    copies: Counter[int] = Counter()
    running: list[Sequence] = []
    for tokens, answer, stays in prompts:
        sequence = Sequence(list(tokens), 2)
        cached = cache.begin(sequence, answer)
        if cached is None:
            if running:
                cache.end(running.pop(0))
            continue
        believed = _believed(copies, sequence)
        cache.store(sequence, len(tokens))
        sequence.tokens += [7] * answer
        cache.store(sequence, len(sequence.tokens) - 1)
        _follow(cache, copies)
        assert cached == believed
        assert copies == {block.hash: block.copies for block in cache.residents()}
        if stays:
            running.append(sequence)
        else:
            cache.end(sequence)


def _believed(copies: "Counter[int]", sequence: Sequence) -> int:
    """Hits by the events so far, capped as engines do: the last token is always computed."""
    keys = Sequence(list(sequence.tokens), sequence.block_size).extend_keys()
    hits = 0
    while hits < len(keys) and copies[keys[hits]] > 0:
        hits += 1
    return min(hits, (len(sequence.tokens) - 1) // sequence.block_size) * sequence.block_size


def _follow(cache: BlockCache, copies: "Counter[int]") -> None:
    for event in cache.events:
        if isinstance(event, Stored):
            copies.update(event.hashes)
        elif isinstance(event, Removed):
            copies[event.hash] -= 1
            if not copies[event.hash]:
                del copies[event.hash]
    cache.events.clear()
