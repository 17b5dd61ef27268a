"""What one index knows goes to another as bytes, and comes back exactly or not at all."""

from array import array

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.kvcache.events import Stored
from epp.kvcache.image import RankImage, anchors_of, fill
from epp.kvcache.run_index import RunIndex
from epp.kvcache.snapshot import Decoder, RankPieces, SnapshotError, encode
from epp.prompts.prompt import Prompt
from tests.kvcache.test_run_index import BLOCK, CREDITS, KEYS, Both, chains, operations, prompt

SECRET_ID = b"12345678"


def image(i: int) -> RankImage:
    return RankImage(
        source=f"tcp://10.0.0.{i}:5557",
        incarnation=(f"w{i}", "uid", 0, f"10.0.0.{i}:8000"),
        sequence=i,
        digests={i: 2**64 - 1},
        complete=True,
        block_size=BLOCK,
        groups={0: True},
    )


def snapshot(both: Both) -> bytes:
    index, ranks = both.indexes[1], both.ranks[1]
    assert isinstance(index, RunIndex)
    return b"".join(encode(SECRET_ID, (RankPieces(image(i), index.capture(rank)) for i, rank in enumerate(ranks))))


def decoded(data: bytes, pieces: int = 1, **more: object) -> list[RankImage]:
    decoder = Decoder(**({"secret_id": SECRET_ID, "max_blocks": 1000} | more))
    size = max(1, len(data) // pieces)
    images = [i for start in range(0, len(data), size) for i in decoder.feed(data[start : start + size]) if i]
    if not decoder.finished:
        raise SnapshotError("it ends too early")
    return images


def take(both: Both, data: bytes) -> None:
    """Put what `data` holds into a new index, and forget in the naive one what was only assumed."""
    index = RunIndex(KEYS, tier_credits=CREDITS)
    images = decoded(data)
    anchors = anchors_of(images)
    both.ranks[1] = [index.open(i // 2) for i in range(3)]
    for rank, known in zip(both.ranks[1], images, strict=True):
        for _ in fill(index, rank, known.segments, anchors):
            pass
    naive = both.indexes[0]
    for state in naive._ranks.values():
        for hash_ in [hash_ for hash_ in state.blocks if hash_ < 0]:
            naive._drop(state, hash_)
    both.indexes = (naive, index)


OUTLIVES = [("assume", 0, None, [1, 0], 4), ("name", 1, None, [1, 1], 1)]
"""A branch whose root is only assumed, so that no snapshot has it."""


@settings(max_examples=80, deadline=None)
@example(OUTLIVES, [("name", 1, None, [1, 1], 0)], [[]])
@given(operations, operations, st.lists(chains, min_size=1, max_size=6))
def test_an_index_filled_from_a_snapshot_goes_on_as_if_nothing_had_happened(before, after, prompts):
    both = Both()
    for step in before:
        both.do(step)
    take(both, snapshot(both))
    for chain in prompts + [step[3] for step in before if len(step) > 3]:
        both.check(chain)
    for step in after:
        both.do(step)
    for chain in prompts + [step[3] for step in before + after if len(step) > 3]:
        both.check(chain)


def some() -> Both:
    both = Both()
    for rank, chain in enumerate(([0, 1, 2], [0, 1, 1], [2])):
        both.do(("store", rank, 0, chain, 0, 0))
    return both


def test_what_changes_while_a_snapshot_is_read_is_not_in_it():
    both = some()
    index, rank = both.indexes[1], both.ranks[1][0]
    pieces = index.capture(rank)
    both.do(("remove", 0, 0, [0, 1, 2], 1, 0))
    both.do(("store", 0, 0, [0, 2, 2], 0, 0))
    (segment,) = [piece for piece in pieces if piece]
    other = RunIndex(KEYS)
    for _ in fill(other, other.open(0), [segment], {}):
        pass
    assert other.match(prompt([0, 1, 2])).cached_tokens.tolist() == [3 * BLOCK]
    assert other.match(prompt([0, 2, 2])).cached_tokens.tolist() == [BLOCK]


@pytest.mark.parametrize("pieces", [1, 2, 7, 10_000])
def test_it_may_come_in_any_pieces(pieces):
    data = snapshot(some())
    assert [(i.sequence, i.blocks) for i in decoded(data, pieces)] == [(0, 3), (1, 3), (2, 1)]


def test_every_truncation_is_noticed():
    data = snapshot(some())
    for length in range(len(data)):
        with pytest.raises(SnapshotError):
            decoded(data[:length])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_change_is_noticed(draw):
    data = bytearray(snapshot(some()))
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(SnapshotError):
        decoded(bytes(data))


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    with pytest.raises(SnapshotError):
        decoded(data)


def test_a_later_version_is_refused_by_name():
    data = snapshot(some()).replace(b"epp kv index\x01", b"epp kv index\x07", 1)
    with pytest.raises(SnapshotError, match="version 7 of the format; 1 is understood"):
        decoded(data)


def test_keys_of_another_secret_are_refused():
    with pytest.raises(SnapshotError, match="another secret"):
        decoded(snapshot(some()), secret_id=b"87654321")


def test_more_blocks_than_allowed_are_refused():
    with pytest.raises(SnapshotError, match="more than 6 blocks"):
        decoded(snapshot(some()), max_blocks=6)


def test_large_ranks_are_read_and_written_in_small_steps():
    both = Both()
    names = list(range(10_000))
    index, rank = both.indexes[1], both.ranks[1][0]
    tokens = np.arange(len(names) * BLOCK, dtype=np.uint32)
    index.store(rank, Stored(names, None, array("I", tokens.tobytes()), BLOCK))
    chunks = list(encode(SECRET_ID, [RankPieces(image(0), index.capture(rank))]))
    assert max(map(len, chunks)) < 100_000
    (known,) = decoded(b"".join(chunks), max_blocks=10_000)
    assert known.blocks == 10_000
    assert max(segment.blocks for segment in known.segments) <= 2048
    other = RunIndex(KEYS)
    for _ in fill(other, other.open(0), known.segments, anchors_of([known])):
        pass
    assert other.match(Prompt(tokens=tokens)).cached_tokens.tolist() == [(10_000 - 1) * BLOCK]
    assert other.entries == 10_000
