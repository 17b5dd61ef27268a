"""A real Envoy in front of an endpoint picker, on free loopback ports, for demos, tests and benchmarks.

It has the shape that gateways generate: ext_proc asks the picker, and an ORIGINAL_DST cluster goes where the
destination header says. Envoy itself is a binary of its own: `make envoy` installs it, or ENVOY names one.
"""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from epp.settings import BodyMode
from epp.simulate.child import child

DESTINATION_HEADER = "x-gateway-destination-endpoint"
RUN_HEADER = "x-envoy-run"
"""Response header with the run's nonce: proves that an answer came through this Envoy and no other."""
WORKER_HEADER = "x-envoy-worker"
"""Response header with the `ip:port` of the worker that answered."""

Json = dict[str, object]

_INSTALLED = Path(".tools/envoy/envoy/_bin/envoy")
_START_SECONDS = 30.0


class EnvoyError(Exception):
    """Envoy is missing or does not start; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyConfig:
    """What differs from run to run; the defaults are what most gateways generate."""

    picker_port: int | None = None
    """Port of the ext_proc server on loopback; None: no ext_proc filter, for a baseline."""
    picker_tls: bool = False
    """Speak TLS to the picker; its certificate is not checked, as with most gateways and a self-signed one."""
    more_picker_ports: tuple[int, ...] = ()
    """Ports of further replicas of it: streams go to one after the other."""
    picker_health_seconds: float | None = None
    """Pause between checks of the replicas' health; None: they are taken to be healthy."""
    picker_retries: int = 0
    """How often a stream that could not be opened is tried again, perhaps at another replica."""
    request_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_headers: bool = True
    trailers: bool = True
    failure_mode_allow: bool = False
    message_timeout_seconds: float = 5.0
    observability: bool = False
    """Envoy's observability_mode: the picker sees the traffic and its answers are ignored."""
    shadow_port: int | None = None
    """Port of a second ext_proc server, behind the picker, that only watches (observability_mode)."""
    shadow_body: BodyMode = BodyMode.STREAMED
    """What it is shown of both bodies."""
    direct_answer: str | None = None
    """Adds a listener that answers every request with this text, as the cheapest possible worker."""
    concurrency: int = 1
    """Envoy's worker threads."""
    same_protocol: bool = False
    """Speak to a worker as the client speaks: HTTP/2 for HTTP/2 and gRPC; else always HTTP/1.1."""
    buffer_bytes: int | None = None
    """Bytes of a body that buffered modes can hold; None: Envoy's own limit, 1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envoy:
    """One running Envoy."""

    port: int
    admin_port: int
    answer_port: int | None
    nonce: str
    pid: int

    @property
    def address(self) -> str:
        """`ip:port` that clients call."""
        return f"127.0.0.1:{self.port}"

    def stats(self, prefix: str) -> dict[str, int]:
        """Envoy's counters and gauges whose names start with `prefix`."""
        text = _admin(self.admin_port, f"/stats?filter=^{prefix}")
        pairs = (line.split(": ", 1) for line in text.splitlines())
        return {name: int(value) for name, value in pairs if value.isdigit()}


def find_envoy() -> Path:
    """The Envoy binary: $ENVOY, the one that `make envoy` installed, or `envoy` on the PATH.

    Raises EnvoyError when there is none.
    """
    named = os.environ.get("ENVOY")
    if named:
        places: tuple[str | Path | None, ...] = (named,)
    else:
        places = (Path(__file__).resolve().parents[2] / _INSTALLED, _INSTALLED, shutil.which("envoy"))
    for place in places:
        if place and os.access(place, os.X_OK):
            return Path(place).resolve()
    raise EnvoyError(f"ENVOY={named!r} is no program" if named else "no Envoy: run `make envoy` or name one in ENVOY")


@contextlib.contextmanager
def running_envoy(config: EnvoyConfig, *, folder: Path | None = None) -> Iterator[Envoy]:
    """Run Envoy until the block ends; its files go to `folder` (default: a temporary one).

    Raises EnvoyError when the binary is missing or does not accept the configuration.
    """
    nonce = secrets.token_hex(8)
    with running_bootstrap(bootstrap_config(config, nonce), nonce, concurrency=config.concurrency, folder=folder) as it:
        yield it


@contextlib.contextmanager
def running_bootstrap(
    bootstrap: Json, nonce: str, *, concurrency: int = 1, folder: Path | None = None
) -> Iterator[Envoy]:
    """Like `running_envoy`, with a bootstrap of the caller's, which has a listener `proxy` and tells `nonce`."""
    binary = find_envoy()
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-envoy-")))
        file = place / "envoy.json"
        file.write_text(json.dumps(bootstrap, indent=1))
        log = place / "envoy.log"
        admin_file = place / "admin"
        admin_file.unlink(missing_ok=True)
        command = [
            str(binary),
            *("--config-path", str(file), "--admin-address-path", str(admin_file)),
            *("--concurrency", str(concurrency), "--log-level", "warning"),
            *("--disable-hot-restart", "--drain-time-s", "0"),
        ]
        process = stack.enter_context(child(command, log=log))
        yield _wait_ready(process, admin_file, log, nonce)


def _wait_ready(process: subprocess.Popen[bytes], admin_file: Path, log: Path, nonce: str) -> Envoy:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EnvoyError(f"Envoy did not start (status {process.returncode}):\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError, ValueError, LookupError, http.client.HTTPException):
            admin_port = int(admin_file.read_text().rsplit(":", 1)[1])
            if _admin(admin_port, "/ready").strip() == "LIVE":
                ports = _listener_ports(admin_port)
                return Envoy(
                    port=ports["proxy"],
                    admin_port=admin_port,
                    answer_port=ports.get("answer"),
                    nonce=nonce,
                    pid=process.pid,
                )
        time.sleep(0.02)
    raise EnvoyError(f"Envoy was not ready after {_START_SECONDS:g} s:\n{log.read_text()[-2000:]}")


def _listener_ports(admin_port: int) -> dict[str, int]:
    statuses = json.loads(_admin(admin_port, "/listeners?format=json"))["listener_statuses"]
    return {status["name"]: status["local_address"]["socket_address"]["port_value"] for status in statuses}


def _admin(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def bootstrap_config(config: EnvoyConfig, nonce: str) -> Json:
    """The whole bootstrap, in Envoy's JSON form."""
    filters = [] if config.picker_port is None else [_ext_proc(config)]
    if config.shadow_port is not None:
        filters.append(_shadow(config))
    listeners = [_listener("proxy", filters, {"cluster": "workers", "timeout": "0s"}, nonce)]
    clusters = [_workers(config)]
    if config.direct_answer is not None:
        listeners.append(_listener("answer", [], None, nonce, config.direct_answer))
    if config.picker_port is not None:
        clusters.append(_replicas(config, config.picker_port))
    if config.shadow_port is not None:
        clusters.append(_picker("shadow", config.shadow_port))
    if config.buffer_bytes is not None:
        for holder in (*listeners, *clusters):
            holder["per_connection_buffer_limit_bytes"] = config.buffer_bytes
    return {
        "admin": {"address": _loopback(0)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
        "layered_runtime": {
            "layers": [
                {
                    "name": "static",
                    "static_layer": {
                        # Ends each ext_proc stream in order instead of resetting it, which leaks in grpc.aio.
                        "envoy.reloadable_features.ext_proc_graceful_grpc_close": True,
                        "overload.global_downstream_max_connections": 50_000,
                    },
                }
            ]
        },
    }


def _listener(name: str, filters: list[Json], route: Json | None, nonce: str, answer: str = "") -> Json:
    answered: Json = {"direct_response": {"status": 200, "body": {"inline_string": answer}}}
    action: Json = answered if route is None else {"route": route}
    manager: Json = {
        "@type": _type("network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": name,
        "generate_request_id": True,
        "stream_idle_timeout": "0s",
        "route_config": {
            "max_direct_response_body_size_bytes": 1 << 20,
            "response_headers_to_add": [
                {"header": {"key": RUN_HEADER, "value": nonce}},
                {"header": {"key": WORKER_HEADER, "value": "%UPSTREAM_REMOTE_ADDRESS%"}},
            ],
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, **action}]}],
        },
        "http_filters": [
            *filters,
            {"name": "router", "typed_config": {"@type": _type("http.router.v3.Router")}},
        ],
    }
    return {
        "name": name,
        "address": _loopback(0),
        "enable_reuse_port": False,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _ext_proc(config: EnvoyConfig) -> Json:
    sent, skipped = "SEND", "SKIP"
    return {
        "name": "picker",
        "typed_config": {
            "@type": _type("http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, **_retried(config)},
            "failure_mode_allow": config.failure_mode_allow,
            "observability_mode": config.observability,
            "message_timeout": f"{config.message_timeout_seconds:g}s",
            "processing_mode": {
                "request_header_mode": sent,
                "request_body_mode": config.request_body.upper(),
                "request_trailer_mode": sent if config.trailers else skipped,
                "response_header_mode": sent if config.response_headers else skipped,
                "response_body_mode": config.response_body.upper(),
                "response_trailer_mode": sent if config.trailers else skipped,
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _shadow(config: EnvoyConfig) -> Json:
    mode = config.shadow_body.upper()
    return {
        "name": "shadow",
        "typed_config": {
            "@type": _type("http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": {"envoy_grpc": {"cluster_name": "shadow"}},
            "failure_mode_allow": True,
            "observability_mode": True,
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": mode,
                "request_trailer_mode": "SEND",
                "response_header_mode": "SEND",
                "response_body_mode": mode,
                "response_trailer_mode": "SEND",
            },
            "response_attributes": ["upstream.address"],
        },
    }


def _workers(config: EnvoyConfig) -> Json:
    protocol: Json = {"use_downstream_protocol_config": {"http2_protocol_options": {}}}
    return {
        "name": "workers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "2s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION_HEADER},
        "circuit_breakers": _no_breakers(),
        **(_http_options(protocol) if config.same_protocol else {}),
    }


def _retried(config: EnvoyConfig) -> Json:
    if not config.picker_retries:
        return {}
    retried: Json = {"retry_on": "connect-failure,refused-stream", "num_retries": config.picker_retries}
    return {"retry_policy": {**retried, "retry_back_off": {"base_interval": "0.01s"}}}


def _replicas(config: EnvoyConfig, port: int) -> Json:
    if config.picker_health_seconds is None:
        return _picker("picker", port, *config.more_picker_ports, tls=config.picker_tls)
    pause = f"{config.picker_health_seconds:g}s"
    check: Json = {"timeout": "5s", "interval": pause, "no_traffic_interval": pause, "unhealthy_threshold": 1}
    check |= {"healthy_threshold": 1, "unhealthy_interval": pause, "grpc_health_check": {"service_name": "readiness"}}
    cluster = _picker("picker", port, *config.more_picker_ports, tls=config.picker_tls)
    # Without one that is healthy, none is asked.
    return {**cluster, "health_checks": [check], "common_lb_config": {"healthy_panic_threshold": {"value": 0}}}


def _picker(name: str, *ports: int, tls: bool = False) -> Json:
    context = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    secure: Json = {
        "name": "tls",
        "typed_config": {
            "@type": f"type.googleapis.com/{context}",
            "common_tls_context": {"alpn_protocols": ["h2"]},
        },
    }
    addresses = [{"endpoint": {"address": _loopback(port)}} for port in ports]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": _no_breakers(),
        **_http_options({"explicit_http_config": {"http2_protocol_options": {}}}),
        **({"transport_socket": secure} if tls else {}),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": addresses}]},
    }


def _http_options(options: Json) -> Json:
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {"typed_extension_protocol_options": {name: {"@type": f"type.googleapis.com/{name}", **options}}}


def _no_breakers() -> Json:
    # The defaults (1,024 requests) would show as errors of the picker under load.
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, 100_000)]}


def _loopback(port: int) -> Json:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _type(name: str) -> str:
    return "type.googleapis.com/envoy.extensions.filters." + name
