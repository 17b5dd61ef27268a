"""Snapshots in ConfigMaps, named `cm://namespace/name`; keys as AICR has them."""

import msgspec

from epp.endpoints.kubernetes.client import ApiError, KubernetesClient
from epp.readiness.snapshot.cluster import SECONDS
from epp.readiness.snapshot.core_objects import ConfigMap
from epp.readiness.snapshot.document import Snapshot
from epp.readiness.snapshot.files import SnapshotError, parse, to_yaml

SCHEME = "cm://"
KEY = "snapshot.yaml"
MOST_BYTES = 1_000_000
"""The API server takes 1 MiB for the whole object."""


def place(uri: str) -> tuple[str, str]:
    """Namespace and name of `cm://namespace/name`. Raises SnapshotError."""
    namespace, slash, name = uri.removeprefix(SCHEME).partition("/")
    if not (uri.startswith(SCHEME) and namespace and slash and name) or "/" in name:
        raise SnapshotError(f"{uri}: expected {SCHEME}namespace/name")
    return namespace, name


async def write(client: KubernetesClient, uri: str, snapshot: Snapshot) -> None:
    """Create the ConfigMap, or replace what is in it. Raises SnapshotError, ApiError and UnreachableError."""
    namespace, name = place(uri)
    text = to_yaml(snapshot)
    if len(text) > MOST_BYTES:
        raise SnapshotError(f"{uri}: {len(text)} bytes are too many for a ConfigMap; write the snapshot to a file")
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "epp"}},
        "data": {KEY: text.decode(), "format": "yaml", "timestamp": snapshot.body.metadata.captured_at},
    }
    await client.apply(f"/api/v1/namespaces/{namespace}/configmaps/{name}", document)


async def read(client: KubernetesClient, uri: str) -> Snapshot:
    """The snapshot in the ConfigMap. Raises SnapshotError and UnreachableError."""
    namespace, name = place(uri)
    try:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        async with client.get(path, {}, silence_seconds=SECONDS) as response:
            found = msgspec.json.decode(await response.read(), type=ConfigMap)
    except (ApiError, msgspec.DecodeError) as problem:
        raise SnapshotError(f"{uri}: {problem}") from None
    text = (found.data or {}).get(KEY)
    if text is None:
        raise SnapshotError(f"{uri}: has no key {KEY}")
    return parse(text.encode(), uri)
