"""A worker's weight is the share of the requests that consider it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint, Role
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


kinds = st.sets(st.sampled_from(list(Role)), min_size=1).map(frozenset)


@given(st.lists(st.tuples(kinds, st.sampled_from([None, 7, 8])), max_size=6))
def test_who_may_do_what_follows_from_each_ones_roles(workers):
    pool = Pool()
    pool.replace(
        Endpoint(name=f"w{i}", address="10.0.0.1", port=1 + i, roles=roles, instance_id=instance)
        for i, (roles, instance) in enumerate(workers)
    )
    eligible, snapshot = Eligible(), pool.snapshot()
    roles, ids = [each for each, _ in workers], [instance for _, instance in workers]
    decode = [i for i, each in enumerate(roles) if Role.DECODE in each]
    prefill = [i for i, each in enumerate(roles) if Role.PREFILL in each and Role.DECODE not in each]
    assert list(eligible.decode(snapshot, None, ())) == decode
    assert list(eligible.prefill(snapshot, ())) == prefill
    assert list(eligible.encode(snapshot)) == [i for i, each in enumerate(roles) if each == {Role.ENCODE}]
    assert eligible.split == (prefill != [] or any(Role.PREFILL not in roles[i] for i in decode))
    for endpoint in snapshot.endpoints:
        several = endpoint.instance_id is not None and ids.count(endpoint.instance_id) > 1
        assert eligible.has_several_ranks(endpoint) == several
