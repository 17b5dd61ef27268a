"""No false alarm for healthy chains shaped like each gateway: class, controller, proxy Service, TLS and modes."""

from collections.abc import Callable

import pytest

from epp.readiness.checks import ALL
from epp.readiness.judge import Exit, exit_code, judge
from epp.readiness.rule import Verdict
from tests.readiness import variants
from tests.readiness.world import World, chain_of, conditions, drop, healthy, meta, one

Shape = Callable[[World], None]


def agentgateway(world: World) -> None:
    """TLS always; the proxy is named after its Gateway, in the Gateway's namespace."""
    variants.of_controller(world, "agentgateway.dev/agentgateway")


def istio(world: World) -> None:
    """Plain text unless a DestinationRule says TLS; the proxy container is named istio-proxy."""
    variants.of_controller(world, "istio.io/gateway-controller")
    container = one(world, "pods", "proxy")["spec"]["containers"][0]
    container["name"] = "istio-proxy"
    tls = {"mode": "SIMPLE", "insecureSkipVerify": True}
    spec = {"host": "epp.llm.svc.cluster.local", "trafficPolicy": {"tls": tls}}
    world["destination_rules"] = [{"metadata": meta("epp", "llm"), "spec": spec}]


def istio_in_plain_text(world: World) -> None:
    variants.of_controller(world, "istio.io/gateway-controller")
    world["config_maps"][0]["data"]["EPP_SECURE_SERVING"] = "false"


def kgateway(world: World) -> None:
    """TLS always; no label on the Service, but it is owned by the Gateway."""
    variants.of_controller(world, "kgateway.dev/kgateway")
    found = one(world, "services", "gw-proxy")["metadata"]
    found["labels"] = {}
    found["ownerReferences"] = [{"kind": "Gateway", "name": "gw"}]


def envoy_ai_gateway(world: World) -> None:
    """The proxy runs in the controller's namespace, here infra's neighbour by its labels; bodies buffered."""
    variants.of_controller(world, "gateway.envoyproxy.io/gatewayclass-controller")
    found = one(world, "services", "gw-proxy")["metadata"]
    prefix = "gateway.envoyproxy.io/owning-gateway"
    found["labels"] = {f"{prefix}-name": "gw", f"{prefix}-namespace": "infra"}
    annotation = {"aigateway.envoyproxy.io/processing-body-mode": "buffered"}
    one(world, "inference_pools", "pool")["metadata"]["annotations"] = annotation


def nginx(world: World) -> None:
    """TLS by a setting of the controller that no object shows."""
    variants.of_controller(world, "gateway.nginx.org/nginx-gateway-controller")


def gke(world: World) -> None:
    """The data plane is outside of the cluster; the Service says kubernetes.io/h2c."""
    variants.of_controller(world, "networking.gke.io/gateway")
    for section, name in (("services", "gw-proxy"), ("endpoint_slices", "gw-proxy-1"), ("pods", "proxy")):
        drop(world, section, name)
    one(world, "services", "epp")["spec"]["ports"][0]["appProtocol"] = "kubernetes.io/h2c"


def several_controllers_report(world: World) -> None:
    """Another gateway's controller has refused the same pool; that is not ours."""
    refused = [condition | {"status": "False", "reason": "Refused"} for condition in conditions(1, "Accepted")]
    other = {"parentRef": {"name": "other", "namespace": "infra"}, "controllerName": "other.io/x"}
    other["conditions"] = refused
    for item in (one(world, "http_routes", "chat"), one(world, "inference_pools", "pool")):
        item["status"]["parents"].insert(0, other)


def hostnames_and_https(world: World) -> None:
    listeners = one(world, "gateways", "gw")["spec"]["listeners"]
    listeners.append(
        {
            "name": "https",
            "port": 443,
            "protocol": "HTTPS",
            "hostname": "*.example.com",
            "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}},
        }
    )
    status = one(world, "gateways", "gw")["status"]["listeners"]
    status.append(status[0] | {"name": "https"})
    route = one(world, "http_routes", "chat")["spec"]
    route["hostnames"] = ["llm.example.com"]
    route["parentRefs"][0]["sectionName"] = "https"
    one(world, "services", "gw-proxy")["spec"]["ports"].append({"name": "https", "port": 443})


def data_parallel(world: World) -> None:
    """Three ranks a pod; one pod has only two of them active."""
    one(world, "inference_pools", "pool")["spec"]["targetPorts"] = [{"number": number} for number in (8000, 8001, 8002)]
    for name, ports in (("w0", (8000, 8001, 8002)), ("w1", (8000, 8002))):
        pod = one(world, "pods", name)
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": port} for port in ports]
        if len(ports) == 2:
            annotations = {"inference.networking.k8s.io/active-ports": "8000, 8002"}
            pod["metadata"]["annotations"] = annotations


def dynamo_operator(world: World) -> None:
    variants.dynamo_workers(world)


def replicas_that_share(world: World) -> None:
    """Two replicas of this EPP, none of which is a leader."""
    first = one(world, "pods", "epp-1")
    world["pods"].append(first | {"metadata": meta("epp-2", "llm", labels={"app": "epp"})})
    found = one(world, "deployments", "epp")
    found["spec"]["replicas"] = 2
    found["status"].update(replicas=2, readyReplicas=2, updatedReplicas=2, availableReplicas=2)


def fail_open(world: World) -> None:
    one(world, "inference_pools", "pool")["spec"]["endpointPickerRef"]["failureMode"] = "FailOpen"


def rights_by_cluster_role(world: World) -> None:
    world["cluster_roles"] = [
        {"metadata": meta("reader"), "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    ]
    world["role_bindings"][0]["roleRef"] = {"kind": "ClusterRole", "name": "reader"}
    world["roles"] = []


def policies_that_allow(world: World) -> None:
    """As manifests/base/networkpolicy.yaml: anybody on the named ports."""
    world["network_policies"] = [
        {
            "metadata": meta("epp", "llm"),
            "spec": {"podSelector": {"matchLabels": {"app": "epp"}}, "ingress": [{"ports": [{"port": "grpc"}]}]},
        },
        {
            "metadata": meta("vllm", "llm"),
            "spec": {
                "podSelector": {"matchLabels": {"app": "vllm"}},
                "ingress": [
                    {
                        "ports": [{"port": 8000}],
                        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "infra"}}}],
                    }
                ],
            },
        },
    ]


def a_null_ready_means_ready(world: World) -> None:
    del one(world, "endpoint_slices", "epp-1")["endpoints"][0]["conditions"]


def a_canary_beside(world: World) -> None:
    """Another route of the same Gateway, for requests with a header, and one for another host."""
    backend = [{"name": "vllm", "port": 8000}]
    match = {"path": {"type": "Exact", "value": "/v1/completions"}, "headers": [{"name": "x-canary", "value": "1"}]}
    spec = one(world, "http_routes", "chat")["spec"]
    world["http_routes"].append(
        {"metadata": meta("canary", "llm", 1), "spec": spec | {"rules": [{"matches": [match], "backendRefs": backend}]}}
    )


SHAPES: tuple[Shape, ...] = (
    agentgateway,
    istio,
    istio_in_plain_text,
    kgateway,
    envoy_ai_gateway,
    nginx,
    gke,
    several_controllers_report,
    hostnames_and_https,
    data_parallel,
    dynamo_operator,
    replicas_that_share,
    fail_open,
    rights_by_cluster_role,
    policies_that_allow,
    a_null_ready_means_ready,
    a_canary_beside,
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda it: it.__name__)
def test_no_false_alarm(shape: Shape):
    world = healthy()
    shape(world)
    results = judge(chain_of(world), ALL)
    alarms = [(it.rule.number, it.text) for it in results if it.verdict not in (Verdict.PASSED, Verdict.SKIPPED)]
    assert alarms == []
    assert exit_code(results) is Exit.READY
