"""Every manifest is rendered and applied to a real API server with strict validation of every field.

Kinds of Gateway API and its Inference Extension are checked by their upstream CRDs; those in OWN, whose CRDs are
in no Go module that can be had, by the minimal schemas of our own in crds/own.
"""

import argparse
import copy
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from epp.readiness.arguments import add_validate_arguments
from epp.serve_flags import add_flags, with_flags
from epp.settings import load_settings
from tests.kubernetes.build import CRDS, EXPERIMENTAL, crds, renderer, suite
from tests.kubernetes.cluster import Cluster, load_crds

MANIFESTS = Path(__file__).parents[2] / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
TOKENIZERS = sorted(f"tokenizer/{path.name}" for path in (MANIFESTS / "components" / "tokenizer").iterdir())
COMPONENTS = ["monitoring", "servicemonitor", "service", "hpa", "policies", "peers", "processes"]
EVERYTHING = MANIFESTS / "chart" / "ci" / "everything-values.yaml"
OWN = {
    "DestinationRule",
    "HealthCheckPolicy",
    "InferenceModelRewrite",
    "InferenceObjective",
    "PodMonitor",
    "ServiceMonitor",
}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"}


@pytest.fixture(scope="session")
def render(kubeserver: Path) -> Path:
    return renderer()


@pytest.fixture
async def full_cluster(cluster: Cluster, upstream_crds: list[dict]) -> Cluster:
    """All kinds that the manifests use; workloads must be as safe as the strictest pod standard demands."""
    own = load_crds(CRDS / "own")
    assert {crd["spec"]["names"]["kind"] for crd in own} == OWN
    upstream = [crd for crd in upstream_crds if crd["kind"] == "CustomResourceDefinition"]
    await cluster.install(*upstream, *own)
    return cluster


def kustomized(render: Path, folder: Path) -> list[dict]:
    return _documents([render, "kustomize", folder])


def charted(render: Path, namespace: str, values: Path | None = None) -> list[dict]:
    return _documents([render, "helm", MANIFESTS / "chart", "epp", namespace, *([values] if values else [])])


def _documents(command: list[object]) -> list[dict]:
    text = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    return [document for document in yaml.safe_load_all(text) if document]


async def apply(cluster: Cluster, documents: list[dict]) -> None:
    """Server-side apply with strict field validation: an unknown or doubled field is an error."""
    plurals: dict[str, dict[str, str]] = {}
    for document in documents:
        version = document["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in plurals:
            resources = (await cluster.call("GET", root))["resources"]
            plurals[version] = {item["kind"]: item["name"] for item in resources if "/" not in item["name"]}
        document["metadata"]["namespace"] = cluster.namespace
        plural, name = plurals[version][document["kind"]], document["metadata"]["name"]
        path = f"{root}/namespaces/{cluster.namespace}/{plural}/{name}"
        strictly = "?fieldManager=check&force=true&fieldValidation=Strict"
        await cluster.call("PATCH", path + strictly, document, "application/apply-patch+yaml")


async def check(cluster: Cluster, documents: list[dict]) -> None:
    assert not {document["kind"] for document in documents} & CLUSTER_WIDE, "nothing needs a cluster admin"
    await apply(cluster, copy.deepcopy(documents))
    deployment = one(documents, "Deployment", "epp")
    template = deployment["spec"]["template"]
    await runs_restricted(cluster, template)
    settings = one(documents, "ConfigMap", template["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"])
    in_force = load_settings(settings["data"])
    pools = {document["metadata"]["name"] for document in documents if document["kind"] == "InferencePool"}
    assert in_force.service_name or in_force.pool_name in pools
    assert in_force.prefill_pool_name in {None, *pools}
    grace = template["spec"]["terminationGracePeriodSeconds"]
    assert grace > in_force.drain_delay_seconds + in_force.drain_timeout_seconds
    for document in documents:
        if document["kind"] == "Role":
            assert {verb for rule in document["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


async def runs_restricted(cluster: Cluster, template: dict) -> None:
    """The real admission check of the `restricted` pod security standard lets the pod in."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await cluster.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    await cluster.create(
        cluster.pods + "?fieldValidation=Strict", {"metadata": {"name": "trial"}, "spec": template["spec"]}
    )


def one(documents: list[dict], kind: str, name: str) -> dict:
    (found,) = [doc for doc in documents if doc["kind"] == kind and doc["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_overlay(full_cluster: Cluster, render: Path, overlay: str):
    await check(full_cluster, kustomized(render, MANIFESTS / "overlays" / overlay))


@pytest.mark.parametrize("component", [*COMPONENTS, *TOKENIZERS])
async def test_components_join_an_overlay(full_cluster: Cluster, render: Path, tmp_path: Path, component: str):
    await check(full_cluster, joined(render, tmp_path, "vllm", "pd", component))


async def test_retries_are_those_of_the_experimental_channel(full_cluster: Cluster, render: Path, tmp_path: Path):
    """Its HTTPRoute goes under another group, so that both can be installed at once."""
    (experimental,) = load_crds(crds() / EXPERIMENTAL)
    experimental["metadata"] = {"name": "httproutes.experimental.test"}
    experimental["spec"]["group"] = "experimental.test"
    await full_cluster.install(experimental)
    documents = joined(render, tmp_path, "retry")
    route = one(documents, "HTTPRoute", "inference")
    route["apiVersion"] = "experimental.test/v1"
    await check(full_cluster, documents)
    assert route["spec"]["rules"][0]["retry"]["attempts"] == 1


def joined(render: Path, tmp_path: Path, *components: str) -> list[dict]:
    """A user's own kustomization: an overlay with these components."""
    for name in ("base", "components", "overlays"):
        (tmp_path / name).mkdir()
        _copy(MANIFESTS / name, tmp_path / name)
    own = {
        "resources": ["../overlays/istio"],
        "components": [f"../components/{component}" for component in components],
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return kustomized(render, tmp_path / "own")


@pytest.mark.parametrize("values", [None, EVERYTHING], ids=["defaults", "everything"])
async def test_chart(full_cluster: Cluster, render: Path, values: Path | None):
    await check(full_cluster, charted(render, full_cluster.namespace, values))


async def test_the_chart_shows_the_failure_mode(full_cluster: Cluster, render: Path):
    by_default = charted(render, "ns")
    chosen = charted(render, "ns", EVERYTHING)
    assert one(by_default, "InferencePool", "epp")["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
    assert one(chosen, "InferencePool", "workers")["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"


async def test_the_conformance_suite_with_this_picker(full_cluster: Cluster, render: Path, tmp_path: Path):
    """The component over the suite's own resources, as docs/conformance.md says; each EPP serves the pool it is for."""
    _copy(MANIFESTS / "conformance", tmp_path / "component")
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "base.yaml").write_bytes(suite().read_bytes())
    images = [{"name": "epp", "newName": "registry.example/epp", "newTag": "1"}]
    own = {"resources": ["base.yaml"], "components": ["../component"], "images": images}
    (tmp_path / "suite" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    documents = kustomized(render, tmp_path / "suite")
    pools = {it["metadata"]["name"] for it in documents if it["kind"] == "InferencePool"}
    pickers = [it for it in documents if it["kind"] == "Deployment" and "endpoint-picker" in it["metadata"]["name"]]
    assert len(pickers) == len(pools) == 5
    for picker in pickers:
        (container,) = picker["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "registry.example/epp:1"
        assert container["command"] == ["epp", "serve"]
        parser = argparse.ArgumentParser()
        add_flags(parser)
        environ = {one["name"]: one["value"] for one in container["env"]}
        settings = load_settings(with_flags(parser.parse_args(container["args"]), environ))
        assert settings.pool_name in pools
        pools.remove(settings.pool_name)
        assert settings.conformance_hooks
        assert container["readinessProbe"]["grpc"] == {"port": settings.health_port, "service": "inference-extension"}
    await apply(full_cluster, [it for it in documents if it["kind"] not in CLUSTER_WIDE])


def test_the_aicr_catalogue_names_options_that_exist():
    catalogue = yaml.safe_load((MANIFESTS / "aicr" / "catalogue.yaml").read_text())
    (entry,) = catalogue["validators"]
    command, *options = entry["args"]
    parser = argparse.ArgumentParser()
    add_validate_arguments(parser)
    assert command == "validate"
    assert parser.parse_args(options).aicr


async def test_a_mistake_in_a_manifest_is_found(full_cluster: Cluster, render: Path):
    documents = kustomized(render, MANIFESTS / "base")
    one(documents, "Deployment", "epp")["spec"]["replica"] = 2
    with pytest.raises(AssertionError, match=r"field not declared in schema|unknown field"):
        await apply(full_cluster, documents)


def test_base_and_chart_give_the_same_rights(render: Path, tmp_path: Path):
    base = one(kustomized(render, MANIFESTS / "base"), "Role", "epp")
    alone = tmp_path / "values.yaml"
    alone.write_text(yaml.safe_dump({"peers": {"share": False}}))
    chart = one(charted(render, "ns", alone), "Role", "epp")
    assert json.dumps(base["rules"], sort_keys=True) == json.dumps(chart["rules"], sort_keys=True)


@pytest.mark.parametrize(
    ("settings", "resources"),
    [
        ({"EPP_SERVICE_NAME": "vllm"}, ["endpointslices"]),
        ({"EPP_POD_SELECTOR": "app=vllm", "EPP_TARGET_PORTS": "8000"}, ["pods"]),
        ({"EPP_ENDPOINTS_FILE": "/etc/epp/endpoints.yaml"}, []),
        ({"EPP_POOL_GROUP": "inference.networking.x-k8s.io"}, ["pods", "inferencepools"]),
        (
            {"EPP_INFERENCE_POLICIES": "true"},
            ["pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"],
        ),
    ],
)
def test_the_chart_gives_only_the_rights_that_are_used(render: Path, tmp_path: Path, settings: dict, resources: list):
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"settings": settings, "peers": {"share": False}}))
    rules = one(charted(render, "ns", values), "Role", "epp")["rules"]
    assert [name for rule in rules for name in rule["resources"]] == resources


def shares_load(documents: list[dict]) -> None:
    """The settings name a Service that selects the pods, the key is mounted where they say, and rights suffice."""
    deployment = one(documents, "Deployment", "epp")["spec"]
    pod = deployment["template"]["spec"]
    settings = one(documents, "ConfigMap", pod["containers"][0]["envFrom"][0]["configMapRef"]["name"])["data"]
    service = one(documents, "Service", settings["EPP_PEER_SERVICE"])["spec"]
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert settings["EPP_PEER_KEY_FILE"] == mounts["peers"] + "/key"
    rules = one(documents, "Role", "epp")["rules"]
    assert "endpointslices" in [name for rule in rules for name in rule["resources"]]
    assert load_settings(settings).peer_plaintext is False


def test_replicas_of_the_chart_share_load_by_a_key_of_their_own(render: Path, tmp_path: Path):
    documents = charted(render, "ns")
    shares_load(documents)
    assert len(one(documents, "Secret", "epp-peers")["data"]["key"]) >= 43
    named = tmp_path / "values.yaml"
    named.write_text(
        yaml.safe_dump({"peers": {"keySecret": "ours"}, "settings": {"EPP_ENDPOINTS_FILE": "/etc/e.yaml"}})
    )
    documents = charted(render, "ns", named)
    shares_load(documents)
    assert "Secret" not in {document["kind"] for document in documents}
    volumes = one(documents, "Deployment", "epp")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "peers", "secret": {"secretName": "ours", "defaultMode": 0o440}} in volumes


def test_the_peers_component_shares_load(render: Path, tmp_path: Path):
    for name in ("base", "components"):
        (tmp_path / name).mkdir()
        _copy(MANIFESTS / name, tmp_path / name)
    (tmp_path / "own").mkdir()
    own = {"resources": ["../base"], "components": ["../components/peers"]}
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    shares_load(kustomized(render, tmp_path / "own"))


def test_the_chart_guards_the_event_ports_of_both_pools(render: Path):
    documents = charted(render, "ns", EVERYTHING)
    values = yaml.safe_load(EVERYTHING.read_text())
    workers, prefill = (
        one(documents, "NetworkPolicy", f"epp-{name}")["spec"] for name in ("workers", "prefill-workers")
    )
    assert workers["podSelector"]["matchLabels"] == values["pool"]["matchLabels"]
    assert prefill["podSelector"]["matchLabels"] == values["prefillPool"]["matchLabels"]
    assert workers["ingress"] == prefill["ingress"]
    anyone, picker, each_other = workers["ingress"]
    assert [port["port"] for port in anyone["ports"]] == values["pool"]["targetPorts"]
    assert [port["port"] for port in picker["ports"]] == values["networkPolicy"]["eventPorts"]
    assert len(each_other["from"]) == 2


def test_base_and_chart_let_in_the_same_callers(render: Path):
    base = one(kustomized(render, MANIFESTS / "base"), "NetworkPolicy", "epp")["spec"]["ingress"]
    chart = one(charted(render, "ns"), "NetworkPolicy", "epp")["spec"]["ingress"]
    assert [rule["ports"] for rule in base] == [rule["ports"] for rule in chart]


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*.yaml"):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
