"""Snapshots as text: written, and read again from files that may be anything."""

import sys
from pathlib import Path

import msgspec
import yaml

from epp.readiness.snapshot.document import API_GROUP, API_VERSION, KIND, Snapshot, digest

MOST_BYTES = 32 * 1024 * 1024
"""Of a snapshot file; a cluster with a thousand workers has some 2 MB."""
STDIN = "-"


class SnapshotError(Exception):
    """The file is no snapshot that we can use; the text says which file and why."""


class _Head(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""


class _Loader(yaml.CSafeLoader):
    """YAML without aliases, with which a small file can stand for a huge document."""


def to_json(snapshot: Snapshot) -> bytes:
    """The document as JSON."""
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=2) + b"\n"


def to_yaml(snapshot: Snapshot) -> bytes:
    """The document as YAML."""
    text: str = yaml.dump(
        msgspec.to_builtins(snapshot), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000
    )
    return text.encode()


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def read(place: str) -> Snapshot:
    """The snapshot in a file, or on stdin for `-`. Raises SnapshotError."""
    return parse(_bytes(place), "stdin" if place == STDIN else place)


def _bytes(place: str) -> bytes:
    try:
        if place == STDIN:
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise SnapshotError(f"snapshot {place}: {problem.strerror}") from None
    if len(data) > MOST_BYTES:
        raise SnapshotError(f"snapshot {place}: over {MOST_BYTES >> 20} MiB, which no snapshot of ours is")
    return data


def parse(data: bytes, where: str) -> Snapshot:
    """The snapshot in `data`, JSON or YAML. Raises SnapshotError."""
    tree = tree_of(data, where)
    try:
        head = msgspec.convert(tree, _Head)
    except msgspec.ValidationError as problem:
        raise SnapshotError(f"snapshot {where}: expected an object of kind {KIND}: {problem}") from None
    _know(head, where)
    try:
        snapshot = msgspec.convert(tree, Snapshot)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise SnapshotError(f"snapshot {where}: {problem}") from None
    if digest(snapshot.body) != snapshot.digest:
        raise SnapshotError(f"snapshot {where}: its digest does not fit its content: it was changed or cut")
    return snapshot


def tree_of(data: bytes, where: str) -> object:
    """The plain values of a JSON or YAML text. Raises SnapshotError."""
    if not data.strip():
        raise SnapshotError(f"snapshot {where}: is empty")
    try:
        if data.lstrip()[:1] == b"{":
            return msgspec.json.decode(data)
        for event in yaml.parse(data, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                raise SnapshotError(f"snapshot {where}: YAML aliases are not taken")
        return yaml.load(data, Loader=_Loader)  # noqa: S506 - a CSafeLoader
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 0
        raise SnapshotError(f"snapshot {where}: line {line}: {problem.problem}; is it cut off?") from None
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeError, ValueError, RecursionError) as problem:
        text = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        raise SnapshotError(f"snapshot {where}: neither JSON nor YAML: {text}") from None


def _know(head: _Head, where: str) -> None:
    if head.kind != KIND:
        raise SnapshotError(f"snapshot {where}: kind is {head.kind[:60]!r}, expected {KIND}")
    if head.api_version != API_VERSION:
        newer = " (made by another version of epp)" if head.api_version.startswith(API_GROUP + "/") else ""
        raise SnapshotError(f"snapshot {where}: apiVersion {head.api_version[:60]!r}{newer}, expected {API_VERSION}")
