"""Keeps secrets and prompts out: of values that anybody may put into an object, only known ones are recorded.

Known names come from the checks; everything else stays as its name alone. So a new secret is safe by default.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from epp.readiness.snapshot.core_objects import ConfigMap, Container, EnvVar, Pod
from epp.readiness.snapshot.objects import Condition, Meta

REDACTED = "<redacted>"
MOST_MESSAGE = 300
"""Characters of a condition's message."""

SETTINGS = frozenset(
    {
        "EPP_POOL_NAME",
        "EPP_PREFILL_POOL_NAME",
        "EPP_NAMESPACE",
        "EPP_GRPC_PORT",
        "EPP_HEALTH_PORT",
        "EPP_METRICS_PORT",
        "EPP_ADMIN_PORT",
        "EPP_SECURE_SERVING",
        "EPP_BLOCK_SIZE",
        "EPP_KV_EVENTS",
        "EPP_EVENTS_PORT",
        "EPP_REPLAY_PORT",
        "EPP_POLICY",
        "EPP_CONFORMANCE_HOOKS",
        "EPP_TRANSPORT",
        "EPP_DRAIN_DELAY_SECONDS",
        "EPP_DRAIN_TIMEOUT_SECONDS",
        "EPP_PROCESSES",
        "EPP_DESTINATION_HEADER",
        "POOL_NAME",
        "POOL_NAMESPACE",
        "POD_NAMESPACE",
        "NAMESPACE",
        "DYN_EPP_INFERENCE_POOL_NAME",
        "DYN_EPP_PREFILL_INFERENCE_POOL_NAME",
        "DYN_EPP_METRICS_PORT",
        "DYN_SECURE_SERVING",
        "DYN_KV_CACHE_BLOCK_SIZE",
        "DYN_MODEL_NAME",
        "DYN_NAMESPACE",
        "DYN_EVENT_PLANE",
        "DYN_REQUEST_PLANE",
        "DYN_DISCOVERY_BACKEND",
        "DYN_ROUTER_MODE",
        "DYN_ROUTER_REPLICA_SYNC",
        "DYN_ENFORCE_DISAGG",
        "DYN_TCP_RPC_PORT",
        "DYN_TCP_RESPONSE_STREAM_PORT",
    }
)
"""Environment variables whose values are recorded."""

FLAGS = frozenset(
    {
        "--pool-name",
        "--poolName",
        "--pool-namespace",
        "--poolNamespace",
        "--pool-group",
        "--poolGroup",
        "--grpc-port",
        "--grpcPort",
        "--grpc-health-port",
        "--grpcHealthPort",
        "--metrics-port",
        "--metricsPort",
        "--secure-serving",
        "--secureServing",
        "--ha-enable-leader-election",
        "--haEnableLeaderElection",
        "--model",
        "--served-model-name",
        "--block-size",
        "--page-size",
        "--kv-cache-block-size",
        "--kv-events-config",
        "--port",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--data-parallel-size",
        "--router-mode",
        "--namespace",
        "--event-plane",
        "--request-plane",
        "--discovery-backend",
    }
)
"""Command line flags whose values are recorded."""

ANNOTATIONS = (
    "inference.networking.k8s.io/",
    "gateway.networking.k8s.io/",
    "sidecar.istio.io/",
    "aigateway.envoyproxy.io/",
    "nvidia.com/",
    "epp.",
)
"""Annotations that are recorded, by prefix."""

_PROGRAMS = re.compile(
    r"^((/?[\w.-]+/)*(python3?|vllm|sh|bash|epp|env|sglang)|serve|-[mc]|-lc|dynamo(\.\w+)*|sglang\.[\w.]+|exec)$"
)
_ASSIGNMENT = re.compile(r"^(\w+)=")
_MODEL = re.compile(r"^[\w.-]{1,96}(/[\w.-]{1,96})?$")


def pod(found: Pod) -> Pod:
    """The pod with allow-listed values only."""
    spec = found.spec
    return replace(
        found,
        metadata=meta(found.metadata),
        spec=replace(
            spec,
            containers=tuple(map(container, spec.containers)),
            init_containers=tuple(map(container, spec.init_containers or ())),
        ),
    )


def container(found: Container) -> Container:
    """The container with allow-listed values only."""
    return replace(
        found,
        command=words(found.command),
        args=words(found.args, after=(found.command or ())[-1:]),
        env=tuple(map(_variable, found.env or ())),
    )


def _variable(found: EnvVar) -> EnvVar:
    return found if found.name in SETTINGS else EnvVar(found.name)


def config_map(found: ConfigMap) -> ConfigMap:
    """The settings with allow-listed values only; other names keep no value at all."""
    kept = {name: value for name, value in (found.data or {}).items() if name in SETTINGS}
    return replace(found, metadata=meta(found.metadata), data=kept)


def meta(found: Meta) -> Meta:
    """The metadata with allow-listed annotations only."""
    kept = {name: value for name, value in (found.annotations or {}).items() if name.startswith(ANNOTATIONS)}
    return replace(found, annotations=kept or None)


def message(found: Condition) -> Condition:
    """A condition whose message is not too long."""
    return replace(found, message=found.message[:MOST_MESSAGE])


def words(line: Sequence[str] | None, after: Sequence[str] = ()) -> tuple[str, ...]:
    """A command line with values of known flags only; scripts are taken apart into words first."""
    kept: list[str] = []
    previous = (after or ("",))[0]
    for word in _split(line or ()):
        kept.append(_word(word, previous))
        previous = word
    return tuple(kept)


def _word(word: str, previous: str) -> str:
    if word.startswith("--"):
        flag, equals, _ = word.partition("=")
        return word if flag in FLAGS or not equals else f"{flag}={REDACTED}"
    if previous in FLAGS or (previous == "serve" and _MODEL.match(word)) or _PROGRAMS.match(word):
        return word
    assigned = _ASSIGNMENT.match(word)
    return f"{assigned.group(1)}={REDACTED}" if assigned else REDACTED


def _split(line: Iterable[str]) -> Iterable[str]:
    """The words, also those of a script given as one word; a flag's own value stays whole."""
    previous = ""
    for word in line:
        if previous not in FLAGS and not word.startswith("--") and any(char.isspace() for char in word):
            try:
                yield from shlex.split(word, comments=True)
            except ValueError:
                yield REDACTED
        else:
            yield word
        previous = word


def pairs(chart: Mapping[str, str]) -> dict[str, str]:
    """A mapping in sorted order, so that two captures compare well."""
    return dict(sorted(chart.items()))
