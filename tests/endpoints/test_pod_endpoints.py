"""What one pod offers."""

import pytest

from epp.endpoints.endpoint import Role
from epp.endpoints.kubernetes.cluster import Defaults
from epp.endpoints.kubernetes.inference_pool import PoolSpec, PoolSpecError, pool_spec
from epp.endpoints.kubernetes.pod_endpoints import pod_endpoints
from epp.settings import PodReadiness
from tests.endpoints.kube import pod, pool

PLAIN = Defaults(events_port=5557)
DYNAMO = {"nvidia.com/dynamo-namespace": "ns", "nvidia.com/dynamo-component-class": "worker"}


def offered(made, ports=(8000,), defaults=PLAIN):
    return pod_endpoints(made, PoolSpec({}, ports), defaults).endpoints


def test_a_ready_pod_offers_each_target_port():
    first, second = offered(pod(ports=(("", 8000), ("", 8001))), (8000, 8001))
    assert (first.name, first.host_port, first.rank, first.events_port) == ("a-rank-0", "10.0.0.1:8000", 0, 5557)
    assert (second.name, second.host_port, second.rank, second.events_port) == ("a-rank-1", "10.0.0.1:8001", 1, 5558)


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"deleted": True},
        {"phase": "Failed"},
        {"phase": "Pending"},
        {"ip": ""},
    ],
)
def test_a_pod_that_cannot_serve_offers_nothing(change):
    assert offered(pod(**change)) == ()


def test_containers_may_be_the_measure_of_readiness():
    standing_by = pod(ready=False, containers_ready=True)
    assert offered(standing_by) == ()
    by_containers = Defaults(readiness=PodReadiness.CONTAINERS)
    assert [endpoint.host_port for endpoint in offered(standing_by, defaults=by_containers)] == ["10.0.0.1:8000"]
    assert offered(pod(ready=True, containers_ready=False), defaults=by_containers) == ()


def test_active_ports_keep_their_rank():
    made = pod(annotations={"inference.networking.k8s.io/active-ports": "8001, 9999"})
    (endpoint,) = offered(made, (8000, 8001))
    assert (endpoint.name, endpoint.port, endpoint.rank) == ("a-rank-1", 8001, 1)
    remarks = pod_endpoints(made, PoolSpec({}, (8000, 8001)), PLAIN).remarks
    assert any("no target port of the pool: 9999" in remark for remark in remarks)


def test_a_port_that_no_container_declares_is_used_with_a_remark():
    made = pod(ports=(("", 8300),))
    assert [endpoint.port for endpoint in offered(made)] == [8000]
    assert pod_endpoints(made, PoolSpec({}, (8000,)), PLAIN).remarks == ("no container declares port 8000",)


@pytest.mark.parametrize(
    ("labels", "roles"),
    [
        ({}, {Role.DECODE, Role.PREFILL}),
        ({"llm-d.ai/role": "prefill"}, {Role.PREFILL}),
        ({"llm-d.ai/role": "encode-prefill-decode"}, set(Role)),
        ({"epp.role": "decode", "llm-d.ai/role": "prefill"}, {Role.DECODE}),
        ({"llm-d.ai/role": "dancer"}, {Role.DECODE, Role.PREFILL}),
        (DYNAMO | {"nvidia.com/dynamo-component-type": "prefill"}, {Role.PREFILL}),
        (DYNAMO | {"nvidia.com/dynamo-component-type": "decode"}, {Role.DECODE}),
        (DYNAMO | {"nvidia.com/dynamo-component-type": "worker"}, {Role.DECODE, Role.PREFILL}),
        ({"nvidia.com/dynamo-component-type": "prefill"}, {Role.DECODE, Role.PREFILL}),
    ],
)
def test_roles(labels, roles):
    made = pod(labels=labels, ports=(("http", 8000),))
    assert {role for endpoint in offered(made) for role in endpoint.roles} == roles


def test_the_role_of_a_pool_goes_before_labels():
    defaults = Defaults(roles=frozenset({Role.PREFILL}))
    assert offered(pod(labels={"llm-d.ai/role": "decode"}), defaults=defaults)[0].roles == {Role.PREFILL}


def test_annotations_describe_the_worker():
    annotations = {
        "epp.engine": "sglang",
        "epp.events-port": "6000",
        "epp.replay-port": "6100",
        "epp.metrics-port": "9400",
        "epp.block-size": "64",
        "epp.event-ranks": "4",
        "epp.weight": "0.25",
    }
    (endpoint,) = offered(pod(annotations=annotations, labels={"epp.block-size": "32"}))
    assert endpoint.engine == "sglang"
    assert (endpoint.events_port, endpoint.replay_port, endpoint.metrics_port) == (6000, 6100, 9400)
    assert (endpoint.block_size, endpoint.event_ranks, endpoint.weight) == (64, 4, 0.25)


@pytest.mark.parametrize(("text", "ranks"), [("8", 8), ("1024", 1024), ("60000", 1024), ("0", 1), ("x", 1)])
def test_the_number_of_ranks_that_publish_is_bounded(text, ranks):
    (endpoint,) = offered(pod(annotations={"epp.event-ranks": text}))
    assert endpoint.event_ranks == ranks


def test_ranks_that_share_the_target_port_are_endpoints_where_a_header_chooses_among_them():
    annotations = {"epp.event-ranks": "2", "epp.rank-by-header": "true", "epp.events-port": "6000"}
    first, second = offered(pod(annotations=annotations))
    assert first.host_port == second.host_port
    assert [(each.rank, each.events_port, each.rank_by_header) for each in (first, second)] == [
        (0, 6000, True),
        (1, 6001, True),
    ]


@pytest.mark.parametrize(("text", "weight"), [("0", 0.0), ("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("1.0", 1.0)])
def test_a_weight_is_a_share(text, weight):
    assert offered(pod(labels={"epp.weight": text}))[0].weight == weight


@pytest.mark.parametrize("text", ["", "2", "-1", "nan", "1e-3", "0,5", "0.1234567890123456789", "\u0661"])
def test_a_weight_that_makes_no_sense_is_ignored_with_a_remark(text):
    made = pod(annotations={"epp.weight": text})
    assert offered(made)[0].weight == 1.0
    assert "epp.weight" in pod_endpoints(made, PoolSpec({}, (8000,)), PLAIN).remarks[0]


@pytest.mark.parametrize(
    ("given", "known"), [({}, "http"), ({"appProtocol": "kubernetes.io/h2c"}, "kubernetes.io/h2c")]
)
def test_the_protocol_of_the_pool_is_that_of_its_endpoints(given, known):
    spec = pool_spec(pool({"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]} | given))
    (endpoint,) = pod_endpoints(pod(), spec, PLAIN).endpoints
    assert endpoint.app_protocol == known


@pytest.mark.parametrize("value", ["", "no", "0", "70000", "-1", "5557 "])
def test_a_value_that_makes_no_sense_is_ignored_with_a_remark(value):
    made = pod(annotations={"epp.events-port": value})
    assert offered(made)[0].events_port == 5557
    assert "expected a number" in pod_endpoints(made, PoolSpec({}, (8000,)), PLAIN).remarks[0]


@pytest.mark.parametrize("label", ["llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type", "epp.engine"])
def test_engine_types(label):
    assert offered(pod(labels={label: "trtllm-serve"}))[0].engine == "trtllm-serve"


def test_dynamo_workers_are_reached_at_the_port_named_http():
    made = pod("demo-dgd-backend-0-abcde", labels=DYNAMO, ports=(("system", 9090), ("http", 8000), ("nixl", 19090)))
    (endpoint,) = offered(made, (9090,))
    assert endpoint.port == 8000
    assert endpoint.instance_id == 895489534498957
    assert endpoint.events_port is None, "its engine publishes to its own process only"


def test_a_dynamo_worker_without_sidecar_is_not_routable():
    made = pod(labels=DYNAMO, ports=(("system", 9090),))
    result = pod_endpoints(made, PoolSpec({}, (8000,)), PLAIN)
    assert result.endpoints == ()
    assert "no container port is named http" in result.remarks[0]


def test_dynamos_other_components_are_no_workers():
    labels = DYNAMO | {"nvidia.com/dynamo-component-class": "frontend"}
    assert offered(pod(labels=labels))[0].instance_id is None


@pytest.mark.parametrize(("ipv6", "place"), [(False, "10.0.0.1:8000"), (True, "[fd00::1]:8000")])
def test_the_wanted_family_of_a_pod_with_both(ipv6, place):
    made = pod(more_ips=("fd00::1",))
    assert offered(made, defaults=Defaults(ipv6=ipv6))[0].host_port == place


def test_a_pod_with_one_family_is_reached_by_it():
    assert offered(pod(ip="fd00::2"))[0].host_port == "[fd00::2]:8000"


@pytest.mark.parametrize(
    ("spec", "labels", "ports"),
    [
        (
            {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 1}, {"number": 2}]},
            {"app": "x"},
            (1, 2),
        ),
        ({"selector": {"app": "x"}, "targetPortNumber": 8000}, {"app": "x"}, (8000,)),
        ({"selector": {"matchLabels": {"a.b/c_d": ""}}, "targetPorts": [{"number": 1}]}, {"a.b/c_d": ""}, (1,)),
    ],
)
def test_both_shapes_of_a_pool(spec, labels, ports):
    found = pool_spec(pool(spec))
    assert (found.labels, found.ports) == (labels, ports)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}, "expected at least one label"),
        ({"selector": {}, "targetPorts": [{"number": 1}]}, "expected at least one label"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "expected 1 to 8 different ports"),
        ({"selector": {"a": "b"}, "targetPortNumber": 0}, "expected 1 to 8 different ports"),
        ({"selector": {"a": "b"}, "targetPorts": [{"number": 1}, {"number": 1}]}, "expected 1 to 8 different ports"),
        (
            {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": []}, "targetPorts": [{"number": 1}]},
            "only matchLabels",
        ),
    ],
)
def test_pools_that_cannot_be_followed(spec, message):
    with pytest.raises(PoolSpecError, match=message):
        pool_spec(pool(spec))
