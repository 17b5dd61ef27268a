"""The pool is what all sources say together, whichever way they tell of a change."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.membership import Membership
from epp.endpoints.pool import Pool

PLACES = [f"10.0.0.1:{port}" for port in range(1, 6)]


class Members:
    """A source that a test edits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[str, Endpoint] = {}

    def endpoints(self):
        return list(self.known.values())

    def at(self, place):
        return self.known.get(place)

    def edit(self, port: int, version: int | None) -> str:
        """Have another run of the worker at `port`; None: have none."""
        place = f"10.0.0.1:{port}"
        self.known.pop(place, None)
        if version is not None:
            self.known[place] = Endpoint(name=self.name, address="10.0.0.1", port=port, generation=version)
        return place


edits = st.tuples(st.sampled_from([0, 1]), st.integers(1, 5), st.sampled_from([None, 0, 1]))


@settings(max_examples=50)
@given(st.lists(edits, max_size=20), st.integers(2, 9))
def test_telling_places_leads_where_telling_all_leads(edits, most):
    async def follow() -> None:
        one, other = Pool(), Pool()
        sources = Members("first"), Members("second")
        by_place, by_all = Membership(one, most=most), Membership(other, most=most)
        for source in sources:
            by_place.add_source(source)
            by_all.add_source(source)
        for which, port, version in edits:
            by_place.changed([sources[which].edit(port, version)])
            by_all.changed()
            by_place.settle()
            by_all.settle()
            told, listed = ({e.host_port: e for e in pool.snapshot().endpoints} for pool in (one, other))
            assert len(told) == min(most, len({*sources[0].known, *sources[1].known}))
            if most > len(PLACES):
                assert told == listed
            for place, endpoint in told.items():
                assert endpoint == (sources[0].at(place) or sources[1].at(place)), "an earlier source wins"

    asyncio.run(follow())


async def test_settling_leaves_nothing_to_wait_for():
    pool, members = Pool(), Members("w")
    membership = Membership(pool, most=10)
    membership.add_source(members)
    membership.changed([members.edit(1, 0)])
    membership.settle()
    assert set(pool.snapshot().position) == {"10.0.0.1:1"}
    version = pool.snapshot().version
    await asyncio.sleep(0)
    assert pool.snapshot().version == version
