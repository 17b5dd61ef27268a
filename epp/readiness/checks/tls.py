"""Group E: whether the EPP speaks what the gateway is going to speak to it, as far as objects tell."""

from collections.abc import Iterator
from enum import StrEnum

from epp.readiness.chain import Chain
from epp.readiness.checks.sources import observed
from epp.readiness.rule import Group, NotApplicableError, Problem, check
from epp.readiness.snapshot.core_objects import Pod
from epp.readiness.words import first_of, flags_of, settings_of

SECURE_SETTINGS = ("EPP_SECURE_SERVING", "DYN_SECURE_SERVING")
SECURE_FLAGS = ("--secure-serving", "--secureServing")
POOL_NAMES = ("EPP_POOL_NAME", "DYN_EPP_INFERENCE_POOL_NAME", "POOL_NAME")
POOL_FLAGS = ("--pool-name", "--poolName")


class Speech(StrEnum):
    """What is spoken on a connection."""

    TLS = "TLS"
    PLAIN = "plain text"


ALWAYS_TLS = ("agentgateway.dev/", "kgateway.dev/", "gateway.envoyproxy.io/", "aigateway.envoyproxy.io/")
"""Controllers that always speak TLS to a picker, unverified."""
BY_RULE = ("istio.io/",)
"""Plain text, unless a DestinationRule says otherwise."""


def gateway_speech(chain: Chain) -> Speech | None:
    """What the gateway speaks to the EPP; None: by settings that no object shows. Raises UnreadableError."""
    found = chain.gateway_class
    controller = found.spec.controller_name if found else ""
    if controller.startswith(ALWAYS_TLS):
        return Speech.TLS
    if not controller.startswith(BY_RULE):
        return None
    place = chain.picker_place
    hosts = (place.name, f"{place.name}.{place.namespace}", f"{place.name}.{place.namespace}.svc")
    rules = chain.objects(chain.body.sections.destination_rules, "DestinationRules", place.namespace)
    for rule in rules:
        host = rule.spec.host.removesuffix(".cluster.local")
        policy = rule.spec.traffic_policy
        if host in hosts and policy is not None and policy.tls is not None:
            return Speech.PLAIN if policy.tls.mode == "DISABLE" else Speech.TLS
    return Speech.PLAIN


def picker_speech(chain: Chain, pod: Pod) -> Speech | None:
    """What a pod of the EPP speaks by its settings; pickers speak TLS by default. None: its settings are not known."""
    for container in pod.spec.containers:
        settings, known = settings_of(chain, pod, container)
        flags = flags_of(container)
        said = first_of(settings, *SECURE_SETTINGS) or first_of(flags, *SECURE_FLAGS)
        if said is not None:
            return Speech.TLS if said.lower() in ("true", "1", "yes", "on") else Speech.PLAIN
        if known and (first_of(settings, *POOL_NAMES) or first_of(flags, *POOL_FLAGS)):
            return Speech.TLS
    return None


@check(
    35,
    "picker.tls",
    group=Group.PICKER,
    needs=(7, 29, 31),
    rule="the EPP speaks TLS where the gateway does, and plain text where it does not",
    source=observed("agentgateway, kgateway and Envoy AI Gateway always speak TLS; Istio does by DestinationRule"),
    fix="set EPP_SECURE_SERVING; with Istio, a DestinationRule of mode SIMPLE with insecureSkipVerify for TLS",
)
def tls(chain: Chain) -> Iterator[Problem]:
    expected = gateway_speech(chain)
    if expected is None:
        raise NotApplicableError("no object tells what this gateway speaks to a picker: --probe shakes hands")
    spoken = {picker_speech(chain, pod) for pod in chain.picker_pods} - {None}
    if not spoken:
        raise NotApplicableError("the EPP's settings do not tell what it speaks: --probe shakes hands")
    for wrong in sorted(str(one) for one in spoken if one is not expected):
        yield Problem(f"EPP speaks {wrong}, gateway expects {expected}", f"Service {chain.picker_place}")


CHECKS = (tls,)
