"""Every environment variable, in one model; docs/settings.md is generated from it."""

import difflib
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo

PREFIX = "EPP_"

_SERVICE_LINK = re.compile(r"EPP_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://.*")


class SettingsError(Exception):
    """A setting is wrong; the text names it and says what was expected."""


class BodyMode(StrEnum):
    """How the gateway sends bodies, where it does not announce it."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every exchange looks some modes up

    AUTO = "auto"
    NONE = "none"
    STREAMED = "streamed"
    BUFFERED = "buffered"
    BUFFERED_PARTIAL = "buffered_partial"
    FULL_DUPLEX_STREAMED = "full_duplex_streamed"


class PodReadiness(StrEnum):
    """What makes a pod ready to serve."""

    POD = "pod"
    CONTAINERS = "containers"


class TransportName(StrEnum):
    """What carries ext_proc streams."""

    GRPCIO = "grpcio"
    HTTP2 = "http2"


class UnknownModel(StrEnum):
    """What happens to a request for a model that is not served here."""

    ROUTE = "route"
    REFUSE = "refuse"


class Explain(StrEnum):
    """Where decisions are explained, besides the admin port."""

    OFF = "off"
    LOG = "log"
    HEADER = "header"


class Decider(StrEnum):
    """What decides whether another worker prefills; only pools with workers for that have the choice."""

    NEVER = "never"
    ALWAYS = "always"
    UNCACHED = "uncached"
    """Where at least so many tokens are cached on no decode worker."""
    PREDICTED = "predicted"
    """Where the first token should come sooner that way, transfer included."""


class Missing(StrEnum):
    """What happens to a request that wants a prefill worker when there is none."""

    AGGREGATE = "aggregate"
    REFUSE = "refuse"


def _setting(default: Any, description: str, *, names: tuple[str, ...] = (), **limits: Any) -> Any:
    """A setting with its meaning and the names that operators know from other pickers."""
    return Field(default, description=description, json_schema_extra={"names": list(names)}, **limits)


class PortsSettings(BaseModel):
    """Where the EPP listens."""

    host: str = _setting("0.0.0.0", "Address on which the gRPC, health and metrics ports listen.")  # noqa: S104
    grpc_port: int = _setting(9002, "Port of the ext_proc gRPC service.", ge=0, le=65535)
    health_port: int = _setting(9003, "Port of the gRPC health service.", ge=0, le=65535)
    metrics_port: int = _setting(9090, "Port of Prometheus metrics.", names=("DYN_EPP_METRICS_PORT",), ge=0, le=65535)
    admin_host: str = _setting("127.0.0.1", "Address of the admin port; keep it on loopback unless it is protected.")
    admin_port: int = _setting(9091, "Port of the admin endpoint, which serves /status.", ge=0, le=65535)


class EndpointsSettings(BaseModel):
    """Where the endpoints come from; exactly one of the sources is named."""

    pool_name: str | None = _setting(
        None, "Source: InferencePool whose pods are the endpoints.", names=("DYN_EPP_INFERENCE_POOL_NAME",)
    )
    prefill_pool_name: str | None = _setting(
        None,
        "InferencePool whose pods only prefill; EPP_POOL_NAME then names the decode pool.",
        names=("DYN_EPP_PREFILL_INFERENCE_POOL_NAME",),
    )
    pool_group: str | None = _setting(
        None, "API group of the InferencePool; default: v1's where the cluster has it, else v1alpha2's."
    )
    inference_policies: bool = _setting(
        False,
        "Whether to follow the pool's InferenceObjectives and InferenceModelRewrites; it needs the right to.",
    )
    pod_selector: str | None = _setting(
        None, "Source: label selector of the pods, as in `kubectl get pods -l`, without an InferencePool."
    )
    service_name: str | None = _setting(None, "Source: Service whose EndpointSlices list the endpoints.")
    endpoints_file: Path | None = _setting(
        None, "Source: YAML or JSON file that lists the endpoints; it is read again when it changes."
    )
    endpoints: str | None = _setting(None, "Source: comma list of ip:port.")
    namespace: str | None = _setting(
        None, "Namespace of pool, pods and Service; default: the EPP's own.", names=("POD_NAMESPACE", "NAMESPACE")
    )
    target_ports: str | None = _setting(
        None, "Comma list of 1 to 8 ports for EPP_POD_SELECTOR, or names or numbers of ports for EPP_SERVICE_NAME."
    )
    pod_readiness: PodReadiness = _setting(
        PodReadiness.POD, "What makes a pod ready: pod (its condition) or containers (the one that has the port)."
    )
    pod_ipv6: bool = _setting(False, "Whether the IPv6 address of a pod with both families is used.")
    events_port: int | None = _setting(
        5557,
        "Port of KV events of pods that name none; rank n publishes on this port plus n; 0: none.",
        names=("DYN_EPP_KV_EVENT_PORT",),
        ge=0,
        le=65535,
    )
    replay_port: int | None = _setting(
        None,
        "Port of the event replay of pods that name none; rank n replays on this port plus n.",
        names=("DYN_EPP_KV_EVENT_REPLAY_PORT",),
        ge=0,
        le=65535,
    )
    max_endpoints: int = _setting(10_000, "Endpoints in the pool; more are left out, with a warning.", ge=1)
    kube_watch_seconds: float = _setting(
        300.0, "Longest life of one watch of the Kubernetes API; a full list follows.", ge=1, le=3600
    )
    kube_silence_seconds: float = _setting(
        75.0, "Silence after which a watch counts as dead; bookmarks come about every 60 s.", ge=1, le=3600
    )
    kube_retry_seconds: float = _setting(10.0, "Longest pause before the Kubernetes API is asked again.", gt=0, le=600)
    endpoints_file_seconds: float = _setting(
        1.0, "Seconds between looks at the endpoints file; 0: it is read once.", ge=0, le=3600
    )


class ExchangeSettings(BaseModel):
    """How requests and their bodies are handled."""

    request_body_mode: BodyMode = _setting(
        BodyMode.AUTO, "Mode of request bodies where the gateway does not announce it; auto: what the messages show."
    )
    response_body_mode: BodyMode = _setting(
        BodyMode.AUTO, "Mode of response bodies where the gateway does not announce it; auto: what the messages show."
    )
    max_body_bytes: int = _setting(
        32 * 1024 * 1024,
        "Bytes of a request body that are kept for the pick; of a longer one the beginning decides, "
        "and the rest still streams through.",
        ge=0,
    )
    reject_large_bodies: bool = _setting(False, "Answer a body above EPP_MAX_BODY_BYTES with 413 in place of a pick.")
    reject_bad_requests: bool = _setting(
        False, "Answer a body that is no JSON, or whose messages no engine takes, with 400 in place of a pick."
    )
    max_buffered_bytes: int = _setting(
        1024 * 1024 * 1024,
        "Bytes of request bodies that all requests together may keep for their picks; beyond it a request is picked "
        "by what was seen of it.",
        ge=0,
    )
    max_streams: int = _setting(20_000, "Requests open at one time; a further one is answered with 503.", ge=1)
    pick_timeout_ms: int = _setting(
        1000,
        "Milliseconds for understanding a request; a late one is routed by load alone. No gateway has such a limit.",
        ge=1,
    )
    trusted_headers: str = _setting(
        ",".join(
            f"{owner}-inference-{name}" for name in ("fairness-id", "objective") for owner in ("x-gateway", "x-llm-d")
        ),
        "Comma list of routing headers that clients may set; all other such headers are removed. `none`: no header.",
    )
    destination_header: str = _setting("x-gateway-destination-endpoint", "Header, and metadata key, of the pick.")
    destination_namespace: str = _setting("envoy.lb", "Metadata namespace of the pick.")
    subset_key: str = _setting("x-gateway-destination-endpoint-subset", "Metadata key of the subset hint.")
    subset_namespace: str = _setting("envoy.lb.subset_hint", "Metadata namespace of the subset hint.")
    served_key: str = _setting(
        "x-gateway-destination-endpoint-served", "Metadata key of the endpoint that the gateway says answered."
    )
    served_namespace: str = _setting("envoy.lb", "Metadata namespace of the endpoint that answered.")
    conformance_hooks: bool = _setting(
        False,
        "Obey the test headers of the Gateway's conformance suite, with which any client can choose its worker. "
        "Never in production.",
    )


class CarrierSettings(BaseModel):
    """The gRPC server that gateways call."""

    transport: TransportName = _setting(
        TransportName.GRPCIO, "What carries the streams: grpcio, or http2 for the server in plain Python."
    )
    secure_serving: bool = _setting(
        True,
        "TLS on the ext_proc port, as most gateways expect; without EPP_TLS_CERT_FILE the certificate is self-signed.",
        names=("DYN_SECURE_SERVING",),
    )
    tls_cert_file: Path | None = _setting(None, "PEM certificate chain of the ext_proc port; read again when changed.")
    tls_key_file: Path | None = _setting(None, "PEM private key of EPP_TLS_CERT_FILE.")
    tls_client_ca_file: Path | None = _setting(None, "PEM authorities whose client certificates are demanded (mTLS).")
    tls_client_names: str = _setting(
        "", "Comma list of subject alternative names that client certificates may have; empty: any from the authority."
    )
    max_connections: int = _setting(4096, "Connections to the ext_proc port at one time.", ge=1)
    max_connection_streams: int = _setting(20_000, "Streams on one connection at one time.", ge=1)
    keepalive_seconds: float = _setting(60.0, "Seconds without traffic after which a connection is pinged.", gt=0)
    max_connection_age_seconds: float = _setting(
        0.0, "Seconds after which a connection is asked to end (GOAWAY), its streams unharmed; 0: never.", ge=0
    )


class Http2Settings(BaseModel):
    """Further bounds of the server in plain Python (EPP_TRANSPORT=http2)."""

    http2_header_bytes: int = _setting(65_536, "Bytes of a stream's gRPC metadata, announced to gateways.", ge=4096)
    http2_stream_window_bytes: int = _setting(
        1024 * 1024, "Bytes that a gateway may send on a stream ahead of what is read.", ge=65_535, le=2**31 - 1
    )
    http2_connection_window_bytes: int = _setting(
        16 * 1024 * 1024, "The same for all streams of a connection.", ge=65_536, le=2**31 - 1
    )
    http2_connection_buffer_bytes: int = _setting(
        128 * 1024 * 1024,
        "Bytes held for one connection, both ways, before its window stays shut and growing messages are refused.",
        ge=1024 * 1024,
    )
    http2_buffer_bytes: int = _setting(1024 * 1024 * 1024, "The same for all connections together.", ge=1024 * 1024)
    http2_control_frames_per_second: int = _setting(
        2000, "Frames that move no data, on one connection beyond what its streams explain.", ge=1
    )
    http2_early_resets_per_second: int = _setting(
        1000, "Streams of one connection that the gateway resets before any answer.", ge=1
    )
    http2_handshake_seconds: float = _setting(
        10.0, "Seconds for TLS, and again for the HTTP/2 preface and settings.", gt=0
    )
    http2_idle_seconds: float = _setting(
        3600.0, "Seconds without a stream after which a connection is closed in good order.", gt=0
    )
    http2_stall_seconds: float = _setting(
        300.0,
        "Seconds that answers wait for a gateway that takes none, and that one message takes to come, before their "
        "stream is reset.",
        gt=0,
    )


class PromptsSettings(BaseModel):
    """How a request becomes token ids."""

    tokenizer_path: Path | None = _setting(None, "Directory with tokenizer.json and the chat template of the model.")
    chat_template: Path | None = _setting(None, "Chat template file; default: the one in the tokenizer directory.")
    tokenizer: str | None = _setting(
        None,
        "Where the model's tokenizer is: a directory, package:NAME/DIR, hf:ORG/NAME@REVISION in the local cache, or "
        "http://WORKER:PORT/DIR of a worker that serves its files.",
    )
    allow_hub: bool = _setting(False, "Whether a tokenizer may be downloaded from the Hugging Face hub.")
    models_file: Path | None = _setting(
        None, "YAML file that lists several models: names, tokenizer, chat_template, encoder, adapters."
    )
    adapters: str = _setting("", "Names of LoRA adapters, separated by commas; their KV blocks are their own.")
    tokenizer_check_seconds: float = _setting(
        30.0, "Seconds between two looks whether tokenizer files changed; 0: only until there are some.", ge=0
    )
    tokenizer_download_bytes: int = _setting(
        64 * 1024 * 1024, "Bytes that the tokenizer files of a worker may have together.", ge=1
    )
    tokenizer_download_seconds: float = _setting(
        20.0, "Seconds for one look at the tokenizer files of a worker, the first before the start.", gt=0
    )
    render_url: str | None = _setting(
        None,
        "Engines that render and tokenise what cannot be done here: base URLs separated by commas, or pool for any "
        "worker.",
    )
    render_service_budget_ms: float = _setting(400.0, "Milliseconds that a pick waits for EPP_RENDER_URL.", gt=0)
    render_hedge_ms: float = _setting(
        100.0, "Milliseconds without an answer of EPP_RENDER_URL after which a second worker is asked too.", gt=0
    )
    render_budget_ms: float = _setting(
        500.0, "Milliseconds that a large body gets to be read and rendered; then its process is killed.", gt=0
    )
    render_inline_bytes: int = _setting(
        256 * 1024,
        "Bytes of a body above which it is read in a process of its own, within EPP_RENDER_BUDGET_MS; one with very "
        "many values goes there from 16 KiB on.",
        ge=0,
    )
    trust_request_chat_template: bool = _setting(
        False, "Whether chat templates in requests are rendered, as with vLLM's option of that name."
    )
    harmony_date: str = _setting(
        "",
        "Day, as 2026-01-31, that the engines of gpt-oss show the model; empty: today.",
        names=("VLLM_SYSTEM_START_DATE",),
    )
    tokenizer_threads: int = _setting(
        0, "Threads that encode large prompts; 0: one less than there are cores, at most 4.", ge=0, le=64
    )
    tokenize_budget_ms: float = _setting(
        250.0, "Milliseconds that a pick waits for token ids; later, it goes on with those of the beginning.", ge=0
    )
    tokenize_queue_bytes: int = _setting(
        16 * 1024 * 1024, "Characters that may wait for the tokenizer; beyond, picks do not wait.", ge=0
    )
    token_cache_bytes: int = _setting(256 * 1024 * 1024, "Bytes of the cache of tokens by text; 0: none.", ge=0)
    token_check_share: float = _setting(
        0.001, "Share of prompts that are encoded a second time, whole, to check the token cache.", ge=0, le=1
    )


class KvCacheSettings(BaseModel):
    """What is known of the engines' KV caches."""

    kv_events: bool = _setting(
        True, "Whether to follow the engines' KV events.", names=("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS")
    )
    block_size: int = _setting(
        16, "Tokens per KV block of the engines.", names=("DYN_KV_CACHE_BLOCK_SIZE",), ge=1, le=65536
    )
    kv_adopt_block_size: bool = _setting(
        True, "Whether KV events and metrics may say another block size than the one set; off: such events are skipped."
    )
    kv_index_max_blocks: int = _setting(
        10_000_000, "Entries of the index (a block of a worker in a tier) before ends of prefixes are given up.", ge=1
    )
    kv_index_max_tokens: int = _setting(
        1 << 20, "Tokens of a prompt that the index looks at; what follows counts as not cached.", ge=1, le=1 << 20
    )
    kv_credit_host: float = _setting(0.8, "Share of prefill that a block in host memory saves.", ge=0, le=1)
    kv_credit_disk: float = _setting(0.5, "Share of prefill that a block on the worker's disk saves.", ge=0, le=1)
    kv_credit_external: float = _setting(0.3, "Share of prefill that a block in a shared store saves.", ge=0, le=1)
    kv_discover: bool = _setting(
        False, "Whether to ask engines without an events port where they publish (vLLM from 0.31 on, SGLang)."
    )
    kv_discover_seconds: float = _setting(2.0, "Time that an engine has to say so.", gt=0, le=60)
    kv_bind_port: int | None = _setting(
        None,
        "Port to which engines connect to publish (rank n: this port plus n), named by their topics; unset: they are "
        "connected to. For one process only.",
        ge=1,
        le=65535,
    )
    kv_bind_ranks: int = _setting(1, "Ports for engines to connect to, one for each rank.", ge=1, le=64)
    kv_events_max_waiting: int = _setting(
        10_000, "Messages of one worker that wait in its socket; what comes beyond is lost and replayed.", ge=1
    )
    kv_events_max_bytes: int = _setting(64 * 1024 * 1024, "Bytes of one message of KV events.", ge=1024)
    kv_events_topic: str = _setting("", "Prefix of the topics that are followed; empty: all.")
    kv_replay_seconds: float = _setting(
        2.0, "Seconds without an answer after which a replay counts as ended.", gt=0, le=60
    )
    kv_worker_blocks: int = _setting(
        8192, "Blocks of a worker's KV cache, for what is guessed of it where events do not say.", ge=1
    )
    kv_predicted_seconds: float = _setting(
        600.0, "Seconds that a worker without KV events is believed to hold a prompt.", gt=0
    )
    kv_overlay_seconds: float = _setting(
        30.0, "Seconds that a prompt on its way counts as held before an event must have said so.", ge=0
    )
    kv_max_parked_blocks: int = _setting(
        4096, "Blocks of one worker with an unknown parent that wait for it.", ge=0, le=1_000_000
    )
    checkpoint_dir: Path | None = _setting(
        None, "Directory for a file with the index of KV blocks, with which a restarted picker begins."
    )
    checkpoint_seconds: float = _setting(60.0, "Seconds between two writings of that file.", ge=1, le=86_400)


class EngineMetricsSettings(BaseModel):
    """How the engines' own metrics are read."""

    engine_metrics: bool = _setting(True, "Whether to read the engines' metrics pages.")
    metrics_least_seconds: float = _setting(
        0.2, "Shortest time between two readings of one endpoint's metrics.", ge=0.05, le=60
    )
    metrics_most_seconds: float = _setting(
        1.8, "Longest time between two readings of one endpoint's metrics, if the budget allows.", ge=0.05, le=60
    )
    metrics_timeout_seconds: float = _setting(1.0, "Time that an engine has to answer with its metrics.", gt=0, le=30)
    metrics_stale_seconds: float = _setting(
        6.0, "Age at which metrics neither help nor harm an endpoint any more.", gt=0, le=3600
    )
    pushed_load: bool = _setting(
        True,
        "Whether to follow SGLang's load channel (--load-publish-endpoint), on the ports that endpoints name; with "
        "EPP_KV_DISCOVER, engines without one are asked for it.",
    )
    metrics_cpu_budget: float = _setting(
        0.03, "Share of a core that reading metrics may cost; beyond it they are read less often.", gt=0, le=1
    )


class SchedulingSettings(BaseModel):
    """How an endpoint is picked."""

    policy: str = _setting("predicted-ttft", "Name of the policy that picks the endpoint.")
    scorers: str | None = _setting(
        None, 'Weighted scorers in place of a policy, such as "prefix:3,queue:2,kv:2"; see docs/plugins.md.'
    )
    filters: str | None = _setting(None, "Comma list of filters that run before the policy.")
    picker: str = _setting("max-score", "How EPP_SCORERS chooses: max-score, weighted-random, softmax, random.")
    config_file: Path | None = _setting(
        None, "YAML or JSON file with a profile of filters, scorers and a picker for each role."
    )
    disaggregation: Decider = _setting(
        Decider.UNCACHED,
        "When a prefill worker computes the prompt, in pools that have some: never, always, uncached, predicted.",
    )
    disaggregation_uncached_tokens: int = _setting(
        512, "uncached: tokens that no decode worker has cached from which on the prefill is split off.", ge=0
    )
    kv_transfer_us_per_token: float = _setting(
        2.0, "predicted: microseconds to move the KV blocks of one prompt token.", ge=0, le=1000
    )
    prefill_missing: Missing = _setting(
        Missing.AGGREGATE, "Without a ready prefill worker: aggregate (the decode worker prefills) or refuse (503)."
    )
    explain: Explain = _setting(
        Explain.OFF,
        "log: a sample of decisions goes to the log, with its candidates; header: callers that send the secret in "
        "`x-epp-explain` get the decision in the response header `x-epp-decision`.",
    )
    explain_secret: SecretStr | None = _setting(
        None, "Secret of EPP_EXPLAIN=header, at least 16 characters: cached tokens tell what others asked."
    )
    explain_sample: float = _setting(0.01, "Share of decisions that EPP_EXPLAIN=log logs.", ge=0, le=1)
    explain_keep: int = _setting(
        100, "Last decisions kept for /decisions on the admin port and `epp explain`.", ge=0, le=10_000
    )
    shadow_policy: str | None = _setting(
        None, "Policy that decides on the side; metrics show how often and by how much it differs."
    )
    models: str | None = _setting(None, "Comma list of the models that are served, adapters included.")
    model_rewrites: str | None = _setting(
        None,
        "Models that serve requests for other names, with weights: `chat=chat-v1:9|chat-v2:1,old=new`. A pool's "
        "InferenceModelRewrites come first.",
    )
    answer_models: bool = _setting(
        False,
        "Answer `GET /v1/models` here, with EPP_MODELS, the names of EPP_MODEL_REWRITES and the adapters that engines "
        "name; else a worker lists its own.",
    )
    unknown_model: UnknownModel = _setting(
        UnknownModel.ROUTE, "A request for a model not in EPP_MODELS: route it all the same, or refuse it (404)."
    )
    eject_failures: int = _setting(
        5,
        "Consecutive failures (5xx, resets, no first token long after it was due) after which a worker is not picked "
        "for a while.",
        ge=1,
        le=1000,
    )
    eject_seconds: float = _setting(5.0, "How long at first; it doubles with each failure after the return.", gt=0)
    eject_most_seconds: float = _setting(300.0, "How long at most.", gt=0)
    eject_share: float = _setting(0.5, "Share of the pool that may be out at once.", ge=0, le=1)
    signs_of_life_per_second: float = _setting(
        200.0,
        "Most questions for a sign of life per second (GET /health), to workers that hold requests and were not heard "
        "of for 0.3 s; 0: none are asked.",
        ge=0,
        le=10_000,
    )
    stalled_seconds: float = _setting(
        30.0, "Seconds without a token, with requests queued, after which a worker counts as stalled.", gt=0
    )
    slow_start_seconds: float = _setting(
        30.0, "Seconds over which a worker that joins is brought to its full share.", ge=0, le=3600
    )
    kv_overlap_score_credit: float = _setting(
        1.0,
        "dynamo-cost: credit for a cached block.",
        names=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",),
        ge=0,
        le=1000,
    )
    kv_overlap_score_credit_decay: float = _setting(
        0.0,
        "dynamo-cost: how fast the credit falls on endpoints busier than the least busy one.",
        names=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",),
        ge=0,
        le=1000,
    )
    prefill_load_scale: float = _setting(
        1.0,
        "dynamo-cost: weight of the prefill cost.",
        names=("DYN_ROUTER_PREFILL_LOAD_SCALE", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT"),
        ge=0,
        le=1000,
    )
    decode_active_request_weight: float = _setting(
        0.0,
        "dynamo-cost: blocks that each active request counts for.",
        names=("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",),
        ge=0,
        le=1000,
    )
    temperature: float = _setting(
        0.0,
        "dynamo-cost: 0 takes the least cost, more spreads the picks.",
        names=("DYN_ROUTER_TEMPERATURE",),
        ge=0,
        le=1000,
    )
    fallbacks: int = _setting(
        0, "Ordered fallback endpoints named behind the pick; only Istio walks a list.", ge=0, le=16
    )
    price_least: float = _setting(
        0.4, "predicted-ttft: price of a second of prefill, for those who come later, when nobody waits.", ge=0, le=4
    )
    price_most: float = _setting(
        4.0, "predicted-ttft: price of a second of prefill under the heaviest load.", ge=0, le=4
    )
    price_in_flight: float = _setting(
        0.01, "predicted-ttft: seconds added for each request in flight at an endpoint.", ge=0, le=1
    )
    price_context: float = _setting(
        0.0001, "predicted-ttft: seconds added for each 1,000 context tokens that decode there.", ge=0, le=0.1
    )
    exploration: float = _setting(
        0.01,
        "predicted-ttft: share of cheap requests that try an endpoint not picked for a minute.",
        ge=0,
        le=0.2,
    )


class PeersSettings(BaseModel):
    """Other processes and replicas, with which load is shared."""

    processes: str = _setting(
        "1", "Processes that share the ports of this EPP, each deciding on its own: a number, or auto for one a core."
    )
    peers: str | None = _setting(
        None, "Comma list of the other replicas, as host or host:port; a replica finds itself in it and leaves it out."
    )
    peer_service: str | None = _setting(None, "Service of the EPP itself, whose pods are the other replicas.")
    peer_host: str | None = _setting(None, "Address on which the peer ports listen; default: EPP_HOST.")
    peer_port: int = _setting(
        9092,
        "First port for other replicas: load here, snapshots on the next one, two more for each process.",
        ge=1,
        le=65000,
    )
    peer_key_file: Path | None = _setting(
        None, "File with a secret of 16 bytes or more that all replicas share; it encrypts and authenticates."
    )
    peer_plaintext: bool = _setting(False, "Whether replicas speak to each other unencrypted, and with anybody.")
    peer_beat_seconds: float = _setting(0.25, "Seconds between two signs of life; all replicas alike.", ge=0.05, le=5)
    peer_silence_seconds: float = _setting(
        3.0, "Seconds without a sign of life after which a replica's load is dropped.", ge=0.2, le=600
    )
    peer_batch_ms: float = _setting(
        1.0, "Milliseconds that a change of load waits for others, to go to the replicas with them.", ge=0, le=100
    )
    peer_queue_messages: int = _setting(
        10_000, "Messages that wait for one slow replica; what comes beyond is lost to it and mended later.", ge=10
    )
    warmup_timeout_seconds: float = _setting(
        30.0, "Seconds that readiness waits for what a warm replica knows of the caches; 0: it does not ask.", ge=0
    )
    max_peers: int = _setting(64, "Other processes whose load is counted; more are ignored.", ge=1, le=1000)
    peer_max_prompt_keys: int = _setting(
        200_000,
        "Pieces of 512 tokens of other replicas' prompts that are remembered; the oldest make room.",
        ge=0,
    )
    peer_max_reservations: int = _setting(100_000, "Requests of one other process that are counted.", ge=1)


class LifeSettings(BaseModel):
    """Start, drain and logs."""

    drain_delay_seconds: float = _setting(0.0, "Seconds between not ready and refusing new streams.", ge=0)
    drain_timeout_seconds: float = _setting(120.0, "Seconds that running streams get to finish.", ge=0)
    log_level: str = _setting("info", "Least severe log level: debug, info, warning, error.")


class Settings(
    LifeSettings,
    PeersSettings,
    SchedulingSettings,
    EngineMetricsSettings,
    KvCacheSettings,
    PromptsSettings,
    Http2Settings,
    CarrierSettings,
    ExchangeSettings,
    EndpointsSettings,
    PortsSettings,
):
    """What `epp serve` reads from the environment, checked once at the start."""

    model_config = ConfigDict(frozen=True)


SECTIONS: tuple[type[BaseModel], ...] = (
    PortsSettings,
    EndpointsSettings,
    ExchangeSettings,
    CarrierSettings,
    Http2Settings,
    PromptsSettings,
    KvCacheSettings,
    SchedulingSettings,
    EngineMetricsSettings,
    PeersSettings,
    LifeSettings,
)
"""The sections in the order of the documentation."""


def comma_list(text: str) -> tuple[str, ...]:
    """The words of a comma list, in lower case; `none` is the empty list."""
    words = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    return () if words == ("none",) else words


def names_of(name: str, field: FieldInfo) -> list[str]:
    """The environment variables that set a field, our own name first."""
    extra = field.json_schema_extra
    aliases = extra.get("names") if isinstance(extra, dict) else None
    return [PREFIX + name.upper(), *(map(str, aliases) if isinstance(aliases, list) else ())]


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in `environ` (default: the process environment).

    Raises SettingsError for an unknown `EPP_*` name or a value that does not fit.
    """
    environ = os.environ if environ is None else environ
    environ = {name: value for name, value in environ.items() if not _is_service_link(name, value)}
    _refuse_unknown(environ)
    values: dict[str, str] = {}
    origin: dict[str, str] = {}
    for name, field in Settings.model_fields.items():
        for variable in names_of(name, field):
            if environ.get(variable, "").strip():
                values[name] = environ[variable].strip()
                origin[name] = variable
                break
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error, values, origin)) from None


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes made this variable, as it does in every pod for a Service whose name begins with `epp`."""
    return bool(_SERVICE_LINK.fullmatch(variable) or (variable.endswith("_PORT") and _LINK_VALUE.fullmatch(value)))


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; see `epp settings` for all names"
            raise SettingsError(f"{variable}: no such setting{hint}")


def _explain(error: ValidationError, values: Mapping[str, str], origin: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        variable = origin.get(name, PREFIX + name.upper())
        expected = problem["msg"][0].lower() + problem["msg"][1:]
        lines.append(f"{variable}={values.get(name, '')!r}: {expected}")
    return "\n".join(lines)
