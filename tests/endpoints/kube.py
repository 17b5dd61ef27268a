"""Pods and pools as the API server sends them."""

import msgspec

from epp.endpoints.kubernetes.objects import InferencePool, Pod


def pod(
    name="a",
    *,
    ip="10.0.0.1",
    ready=True,
    phase="Running",
    labels=None,
    annotations=None,
    ports=(("", 8000),),
    deleted=False,
    restarts=0,
    uid="u",
    created="2026-01-01T00:00:00Z",
    more_ips=(),
    containers_ready=None,
) -> Pod:
    metadata = {
        "name": name,
        "uid": uid,
        "creationTimestamp": created,
        "labels": {"app": "vllm"} if labels is None else labels,
        "annotations": annotations or {},
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    container = {
        "name": "main",
        "ports": [{"containerPort": port} | ({"name": label} if label else {}) for label, port in ports],
    }
    running = ready if containers_ready is None else containers_ready
    status = {
        "phase": phase,
        "podIP": ip,
        "podIPs": [{"ip": address} for address in (ip, *more_ips) if address],
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [{"name": "main", "ready": running, "restartCount": restarts}],
    }
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [container]}, "status": status}, Pod)


def pool(spec: dict) -> InferencePool:
    return msgspec.convert({"metadata": {"name": "pool"}, "spec": spec}, InferencePool)


def convert(document: dict, kind: type) -> object:
    return msgspec.convert(document, kind)
