"""A worker's weight is the share of the requests that consider it."""

import random

import pytest

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.scheduling.eligible import Eligible

DRAWS = 4000


def considered(*weights: float, suspended: frozenset[str] = frozenset()) -> list[float]:
    """For each worker, the share of the requests that may be put on it."""
    pool = Pool()
    pool.replace(Endpoint(name=f"w{i}", address="10.0.0.1", port=1 + i, weight=w) for i, w in enumerate(weights))
    eligible = Eligible(lambda: suspended, random.Random(7).random)
    counts = [0] * len(weights)
    for _ in range(DRAWS):
        chosen = eligible.decode(pool.snapshot(), None, ())
        assert chosen, "somebody is always left"
        for i in chosen:
            counts[i] += 1
    return [count / DRAWS for count in counts]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 1], [1, 1]),
        ([1, 0.25], [1, 0.25]),
        ([0.2, 0.4], [0.5, 1]),
        ([1, 0], [1, 0]),
        ([0, 0], [1, 1]),
        ([0], [1]),
    ],
)
def test_the_share_is_the_weight_beside_the_greatest(weights, shares):
    assert considered(*weights) == pytest.approx(shares, abs=0.03)


def test_a_drained_worker_serves_when_nobody_else_is_left():
    assert considered(1, 0, suspended=frozenset({"10.0.0.1:1"})) == [0, 1]
