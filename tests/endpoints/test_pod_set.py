"""Membership follows from the state of the cluster, whatever the history that led to it."""

from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.kubernetes.cluster import Defaults
from epp.endpoints.kubernetes.inference_pool import PoolSpec
from epp.endpoints.kubernetes.pod_set import PodSet
from epp.endpoints.kubernetes.watch import Listed, Put, Removed
from tests.endpoints.kube import pod

DEFAULTS = Defaults()
pods = st.builds(
    lambda name, **state: pod(name, ip=f"10.0.0.{ord(name)}", **state),
    name=st.sampled_from("abc"),
    ready=st.booleans(),
    deleted=st.booleans(),
    restarts=st.integers(0, 1),
    uid=st.sampled_from("uv"),
    labels=st.sampled_from([{"app": "vllm"}, {"app": "other"}, {"app": "vllm", "track": "new"}]),
)
specs = st.sampled_from([PoolSpec({"app": "vllm"}, (8000,)), PoolSpec({"track": "new"}, (8000, 8001)), None])
steps = st.one_of(
    st.tuples(st.just("put"), pods),
    st.tuples(st.just("remove"), pods),
    st.tuples(st.just("list"), st.lists(pods, max_size=3, unique_by=lambda made: made.metadata.name)),
    st.tuples(st.just("spec"), specs),
)


@given(st.lists(steps, max_size=12))
def test_the_endpoints_are_those_of_a_set_that_saw_only_the_last_state(history):
    seen = PodSet(DEFAULTS)
    model: dict[str, object] = {}
    spec = None
    for step, value in history:
        before = seen.endpoints()
        if step == "spec":
            spec = value
            seen.respecify(spec)
            continue
        if step == "put":
            model[value.metadata.name] = value
            changed = seen.apply(Put(value))
        elif step == "remove":
            known = model.get(value.metadata.name)
            if known is not None and known.metadata.uid == value.metadata.uid:
                del model[value.metadata.name]
            changed = seen.apply(Removed(value.metadata.name, value.metadata.uid))
        else:
            model = {made.metadata.name: made for made in value}
            changed = seen.apply(Listed(tuple(value)))
        assert all(seen.at(e.host_port) == e for e in seen.endpoints())
        by_place = sorted(seen.endpoints(), key=lambda endpoint: endpoint.host_port)
        assert bool(changed) == (by_place != sorted(before, key=lambda endpoint: endpoint.host_port))
    fresh = PodSet(DEFAULTS)
    fresh.respecify(spec)
    fresh.apply(Listed(tuple(model.values())))
    assert {e.incarnation for e in seen.endpoints()} == {e.incarnation for e in fresh.endpoints()}


def test_of_two_pods_at_one_address_the_younger_has_it():
    both = PodSet(DEFAULTS)
    both.respecify(PoolSpec({"app": "vllm"}, (8000,)))
    old = pod("old", created="2026-01-01T00:00:00Z")
    new = pod("new", created="2026-02-01T00:00:00Z")
    for order in ((old, new), (new, old)):
        both.apply(Listed(order))
        assert [endpoint.name for endpoint in both.endpoints()] == ["new"]
