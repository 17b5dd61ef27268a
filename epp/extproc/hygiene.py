"""The headers by which gateway, picker and workers talk to each other, and which no client may set."""

DESTINATION = "x-gateway-destination-endpoint"
"""The pick: header, and key of the metadata in namespace envoy.lb (protocol rule P7)."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
"""Metadata that holds the only endpoints allowed (P3)."""

LB_NAMESPACE = "envoy.lb"
SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Metadata on response messages: the endpoint that answered (P13)."""

OBJECTIVE_HEADERS = (
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-objective",
    "x-llm-d-inference-objective",
)
"""Read from clients as GIE defines them, then removed: they mean nothing to a worker."""

INTERNAL_HEADERS = (
    # The protocol's own.
    SUBSET_KEY,
    SERVED_KEY,
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
"""Set by us or removed, on every path: with one of them a client could name the worker that gets its prompt."""

REMOVED_HEADERS = OBJECTIVE_HEADERS + INTERNAL_HEADERS
