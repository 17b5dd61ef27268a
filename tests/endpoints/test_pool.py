"""A column belongs to one incarnation of an endpoint, and listeners hear of every change."""

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool

endpoints = st.builds(
    Endpoint,
    name=st.sampled_from("abc"),
    address=st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]),
    port=st.sampled_from([8000, 8001]),
    uid=st.sampled_from(["u", "v"]),
    generation=st.integers(0, 1),
    labels=st.dictionaries(st.just("zone"), st.sampled_from("xy")),
)
pools = st.lists(endpoints, max_size=8, unique_by=lambda endpoint: endpoint.host_port)


class Listeners:
    """Keeps its own account of who owns which column."""

    def __init__(self, pool: Pool) -> None:
        self.owners: dict[int, Endpoint] = {}
        pool.on_join(self.join)
        pool.on_leave(self.leave)

    def join(self, column, endpoint):
        assert column not in self.owners, "a column was given out before its owner left"
        self.owners[column] = endpoint

    def leave(self, column, endpoint):
        assert self.owners.pop(column).incarnation == endpoint.incarnation


@settings(max_examples=50)
@given(st.lists(pools, max_size=5))
def test_the_snapshot_is_what_was_asked_for_and_listeners_agree(steps):
    pool = Pool()
    listeners = Listeners(pool)
    for wanted in steps:
        pool.replace(wanted)
        snapshot = pool.snapshot()
        assert sorted(snapshot.endpoints, key=repr) == sorted(wanted, key=repr)
        owners = {int(column): e for column, e in zip(snapshot.columns, snapshot.endpoints, strict=True)}
        assert {c: e.incarnation for c, e in owners.items()} == {c: e.incarnation for c, e in listeners.owners.items()}
        for endpoint in wanted:
            assert snapshot.endpoints[snapshot.position[endpoint.host_port]] == endpoint


@settings(max_examples=50)
@given(st.lists(pools, min_size=2, max_size=4))
def test_an_incarnation_keeps_its_column_and_a_new_one_starts_afresh(steps):
    pool = Pool()
    joined: list[tuple] = []
    pool.on_join(lambda column, endpoint: joined.append(endpoint.incarnation))
    before: dict[tuple, int] = {}
    for wanted in steps:
        joined.clear()
        pool.replace(wanted)
        snapshot = pool.snapshot()
        now = {e.incarnation: int(c) for c, e in zip(snapshot.columns, snapshot.endpoints, strict=True)}
        for incarnation, column in now.items():
            if incarnation in before:
                assert column == before[incarnation]
                assert incarnation not in joined
            else:
                assert joined.count(incarnation) == 1
        before = now


@settings(max_examples=50)
@given(pools, pools)
def test_columns_stay_few(first, second):
    pool = Pool()
    for wanted in (first, second, first, second):
        pool.replace(wanted)
    assert all(column < max(len(first), len(second)) for column in pool.snapshot().columns)


@settings(max_examples=50)
@given(st.lists(pools, max_size=5))
def test_changes_at_some_places_lead_where_a_new_list_leads(steps):
    pool, whole = Pool(), Pool()
    listeners = Listeners(pool)
    for wanted in steps:
        there = {endpoint.host_port: endpoint for endpoint in wanted}
        pool.change({place: there.get(place) for place in (*pool.snapshot().position, *there)})
        whole.replace(wanted)
        by_place = [{e.host_port: e for e in each.snapshot().endpoints} for each in (pool, whole)]
        assert by_place[0] == by_place[1] == there
        owners = dict(zip(pool.snapshot().columns.tolist(), pool.snapshot().endpoints, strict=True))
        assert {c: e.incarnation for c, e in owners.items()} == {c: e.incarnation for c, e in listeners.owners.items()}
        assert len(pool) == len(wanted)


def test_what_changes_nothing_makes_no_new_snapshot():
    pool = Pool()
    worker = Endpoint(name="a", address="10.0.0.1", port=8000)
    pool.replace([worker])
    before = pool.snapshot()
    pool.change({worker.host_port: worker, "10.0.0.9:1": None})
    assert pool.snapshot() is before


def test_a_restarted_worker_at_the_same_place_is_another_one():
    pool = Pool()
    left = []
    pool.on_leave(lambda column, endpoint: left.append((column, endpoint.generation)))
    pool.replace([Endpoint(name="a", address="10.0.0.1", port=8000, generation=0)])
    pool.replace([Endpoint(name="a", address="10.0.0.1", port=8000, generation=1)])
    assert left == [(0, 0)]
    assert pool.snapshot().endpoints[0].generation == 1


def test_a_snapshot_does_not_change_after_it_was_taken():
    pool = Pool()
    pool.replace([Endpoint(name="a", address="10.0.0.1", port=8000)])
    before = pool.snapshot()
    pool.replace([])
    assert [endpoint.name for endpoint in before.endpoints] == ["a"]
    assert pool.snapshot().version > before.version
