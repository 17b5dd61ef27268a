"""The labels and annotations that describe a worker; every name is written here and nowhere else.

Our own names (`epp.*`) may be given as label or annotation of the pod; an annotation wins.
"""

ROLE = "epp.role"
"""One of the names in roles.ROLES."""
ENGINE = "epp.engine"
EVENTS_PORT = "epp.events-port"
"""Port of the first rank's KV events; the n-th rank publishes on this port plus n."""
REPLAY_PORT = "epp.replay-port"
"""Port of the first rank's replay socket; the n-th rank's is this port plus n."""
EVENT_RANKS = "epp.event-ranks"
"""Ranks behind each target port that publish KV events, on its events port and the ports that follow it."""
RANK_BY_HEADER = "epp.rank-by-header"
"""`true`: the ranks that share the one target port are endpoints, which a header tells apart."""
METRICS_PORT = "epp.metrics-port"
LOAD_PORT = "epp.load-port"
"""Port on which SGLang's first rank publishes its load; the n-th rank publishes on this port plus n."""
BLOCK_SIZE = "epp.block-size"
WEIGHT = "epp.weight"
"""A number from 0 to 1: the share of the requests that consider this worker beside workers of weight 1."""

LLMD_ROLE = "llm-d.ai/role"
LLMD_ENGINE = "llm-d.ai/engine-type"
OLD_ENGINE = "inference.networking.k8s.io/engine-type"
ACTIVE_PORTS = "inference.networking.k8s.io/active-ports"
"""Comma list of the target ports that serve on this pod."""

DYNAMO_NAMESPACE = "nvidia.com/dynamo-namespace"
DYNAMO_CLASS = "nvidia.com/dynamo-component-class"
"""`worker` on pods that serve models."""
DYNAMO_TYPE = "nvidia.com/dynamo-component-type"
"""`decode` or `prefill` where the two are apart; also `worker`, `frontend`, `epp`, `planner`."""
DYNAMO_PORT_NAME = "http"
"""Name of the sidecar's container port, the only one that obeys routing headers."""

SERVICE_NAME = "kubernetes.io/service-name"
"""On an EndpointSlice: the Service that it belongs to."""
