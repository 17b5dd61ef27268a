"""What the EndpointSlices of a Service offer."""

import msgspec
import pytest

from epp.endpoints.kubernetes.cluster import Cluster, Defaults
from epp.endpoints.kubernetes.objects import EndpointSlice
from epp.endpoints.kubernetes.slice_feed import SliceFeed
from epp.endpoints.kubernetes.watch import Listed, Put, Removed, Timing

FOUR, SIX = "10.0.0.1", "fd00::1"


def piece(name: str, kind: str, address: str, **conditions: bool) -> EndpointSlice:
    document = {
        "metadata": {"name": name, "uid": name},
        "addressType": kind,
        "endpoints": [{"addresses": [address], "conditions": conditions}],
        "ports": [{"name": "http", "port": 8000}],
    }
    return msgspec.convert(document, EndpointSlice)


def feed(*, ipv6: bool = False) -> SliceFeed:
    cluster = Cluster(client=None, namespace="ns", timing=Timing(), changed=lambda _places=None: None)
    return SliceFeed(cluster, Defaults(ipv6=ipv6), "vllm")


@pytest.mark.parametrize(("ipv6", "place"), [(False, f"{FOUR}:8000"), (True, f"[{SIX}]:8000")])
def test_a_pod_with_both_families_counts_once(ipv6, place):
    both = feed(ipv6=ipv6)
    both.apply(Listed((piece("four", "IPv4", FOUR), piece("six", "IPv6", SIX), piece("name", "FQDN", "w.local"))))
    assert [endpoint.host_port for endpoint in both.endpoints()] == [place]


def test_the_family_that_is_there_is_used():
    six = feed()
    six.apply(Put(piece("six", "IPv6", SIX)))
    assert [endpoint.host_port for endpoint in six.endpoints()] == [f"[{SIX}]:8000"]
    six.apply(Removed("six", "six"))
    assert six.endpoints() == []


@pytest.mark.parametrize(
    ("conditions", "serves"),
    [({}, True), ({"ready": True}, True), ({"ready": False}, False), ({"ready": True, "terminating": True}, False)],
)
def test_who_is_ready_and_stays(conditions, serves):
    one = feed()
    one.apply(Put(piece("four", "IPv4", FOUR, **conditions)))
    assert (len(one.endpoints()) == 1) == serves
    assert (one.at(f"{FOUR}:8000") is not None) == serves
