"""The names by which gateway, picker and workers talk to each other, and the headers that no client may set."""

from collections.abc import Collection
from dataclasses import dataclass

from epp.scheduling.explain_header import ASKING_HEADER

STEERING_HEADER = "test-epp-endpoint-selection"
"""Request header with which the Gateway's conformance suite chooses the endpoint; obeyed only with the hooks on."""

OBJECTIVE_HEADERS = (
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-objective",
    "x-llm-d-inference-objective",
)
"""What clients may say of themselves, as the Inference Extension defines it; workers do not get to see it."""

_INTERNAL_HEADERS = (
    # The protocol's own, by their standard names.
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-scores",
    "x-gateway-model-name-rewrite",
    "x-llm-d-model-name-rewrite",
    # llm-d's, from picker to sidecar.
    "x-prefiller-host-port",
    "x-prefiller-url",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    # Dynamo's, from picker to sidecar, with the aliases that its frontend still accepts.
    "x-dynamo-worker-instance-id",
    "x-dynamo-dp-rank",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-prefill-dp-rank",
    "x-dynamo-routing-mode",
    "x-dynamo-epp-booking-id",
    "x-worker-instance-id",
    "x-prefill-instance-id",
    "x-dp-rank",
    "x-data-parallel-rank",
    "x-prefill-dp-rank",
)
"""Set by us or removed: with one of them a client could name the worker that gets its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The protocol's header and metadata names; the defaults are the standard's (rules P3, P7, P13)."""

    destination: str = "x-gateway-destination-endpoint"
    """The pick: header, and key of the metadata."""
    destination_namespace: str = "envoy.lb"
    subset: str = "x-gateway-destination-endpoint-subset"
    subset_namespace: str = "envoy.lb.subset_hint"
    served: str = "x-gateway-destination-endpoint-served"
    served_namespace: str = "envoy.lb"


def removed_headers(names: Names, trusted: Collection[str]) -> tuple[str, ...]:
    """What is taken off every request; `trusted` headers reach the worker as the client set them."""
    everything = (*OBJECTIVE_HEADERS, *_INTERNAL_HEADERS, names.destination, names.subset, names.served)
    return tuple(name for name in dict.fromkeys((*everything, STEERING_HEADER, ASKING_HEADER)) if name not in trusted)
