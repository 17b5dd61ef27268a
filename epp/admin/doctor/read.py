"""Reads one object, or one list, of the Kubernetes API for the doctor."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from epp.admin.doctor.finding import Finding, unknown
from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, UnreachableError

T = TypeVar("T")

SECONDS = 10.0


async def read(
    client: KubernetesClient, path: str, kind: type[T], where: str, query: Mapping[str, str] | None = None
) -> T | Finding:
    """The object at `path`, or the finding that `where` could not be looked at."""
    try:
        return await read_or_raise(client, path, kind, query)
    except (ApiError, UnreachableError) as problem:
        return unknown(where, f"could not be read: {problem}", "run it with a kubeconfig that may read this")


async def read_or_raise(
    client: KubernetesClient, path: str, kind: type[T], query: Mapping[str, str] | None = None
) -> T:
    """The object at `path`. Raises ApiError or UnreachableError."""
    async with client.get(path, query or {}, silence_seconds=SECONDS) as response:
        document = await response.read()
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.DecodeError as problem:
        raise UnreachableError(f"an answer that is no {kind.__name__}: {problem}") from problem
