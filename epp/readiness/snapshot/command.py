"""`epp snapshot`: record what the checks read."""

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, NoClusterError, UnreachableError
from epp.endpoints.kubernetes.namespace import own_namespace
from epp.readiness.snapshot import config_map
from epp.readiness.snapshot.collect import take
from epp.readiness.snapshot.document import Snapshot, State, json_schema
from epp.readiness.snapshot.epp_status import StatusError, read_status
from epp.readiness.snapshot.files import SnapshotError, to_json, to_yaml


def run(arguments: argparse.Namespace) -> int:
    """Write the snapshot; 0 when it is written, 2 bad input, 3 when there is no cluster to read."""
    if arguments.schema:
        sys.stdout.buffer.write(schema())
        return 0
    try:
        if arguments.output.startswith(config_map.SCHEME):
            config_map.place(arguments.output)
        snapshot = asyncio.run(_take_and_store(arguments))
        _write(arguments.output, arguments.format, snapshot)
    except SnapshotError as problem:
        return complain(2, str(problem))
    except OSError as problem:
        return complain(2, f"{problem.filename}: {problem.strerror}")
    except (NoClusterError, UnreachableError, ApiError, StatusError) as problem:
        return complain(3, str(problem))
    _tell(snapshot)
    return 0


def schema() -> bytes:
    """The JSON Schema, as published."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2) + b"\n"


async def live_snapshot(arguments: argparse.Namespace, client: KubernetesClient) -> Snapshot:
    """A snapshot of the cluster that the options name. Raises UnreachableError and StatusError."""
    status = await read_status(arguments.epp_status.rstrip("/")) if arguments.epp_status else None
    return await take(client, arguments.namespace or [own_namespace()], status)


async def _take_and_store(arguments: argparse.Namespace) -> Snapshot:
    client = KubernetesClient(arguments.kubeconfig)
    await client.open()
    try:
        snapshot = await live_snapshot(arguments, client)
        if arguments.output.startswith(config_map.SCHEME):
            await config_map.write(client, arguments.output, snapshot)
    finally:
        await client.close()
    return snapshot


def _write(output: str, form: str, snapshot: Snapshot) -> None:
    data = to_json(snapshot) if form == "json" else to_yaml(snapshot)
    if output == "-":
        sys.stdout.buffer.write(data)
    elif not output.startswith(config_map.SCHEME):
        Path(output).write_bytes(data)


def _tell(snapshot: Snapshot) -> None:
    """What could not be read, on stderr."""
    for name, section in snapshot.body.sections:
        if section.state in (State.DENIED, State.ERROR):
            complain(0, f"{name}: {section.state}: {section.error}")


def complain(code: int, text: str) -> int:
    """Say it to a person; the code."""
    print(f"epp: {text}", file=sys.stderr)  # noqa: T201 - a command speaks to a person
    return code
