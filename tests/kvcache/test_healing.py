"""A picker that comes new to busy engines, without a replay, knows their caches again from its own traffic."""

import pytest

from benchmarks.kv_healing import World


@pytest.mark.parametrize("seed", [0, 2])
def test_after_200_requests_hits_are_known_and_hardly_any_is_false(seed):
    world = World(seed)
    world.run()
    assert world.picked.cached > 100_000
    assert world.picked.known_share >= 0.95
    assert world.anywhere.false_share < 0.01
