"""Where peers are: the other processes of this pod, and those of other pods."""

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from epp.endpoints.endpoint import host_port
from epp.settings import SettingsError

PORTS_PER_PROCESS = 2
"""One for load, one for snapshots."""


@dataclass(frozen=True, slots=True)
class Place:
    """A process that may be a peer: where its load is published, and where a snapshot is to be had."""

    load: str
    snapshot: str


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of one pod that share its ports, and which of them this one is."""

    count: int = 1
    index: int = 0
    folder: Path | None = None
    """Where their ipc sockets are; None: there is one process only."""
    prefix_secret: bytes | None = field(default=None, repr=False)
    """Of their prefix keys."""

    def of(self, index: int) -> "Processes":
        """Another one of them."""
        return replace(self, index=index)

    def face(self, name: str) -> Path | None:
        """The local socket where this one shows what the parent puts together: `metrics` or `admin`."""
        return None if self.folder is None else self.folder / f"{self.index}.{name}"

    def own_ipc(self) -> tuple[Place, ...]:
        """Where this one is for its siblings."""
        return () if self.folder is None else (_ipc(self.folder, self.index),)

    def siblings(self) -> list[Place]:
        """Where the others of this pod are."""
        if self.folder is None:
            return []
        return [_ipc(self.folder, index) for index in range(self.count) if index != self.index]

    def of_pod(self, host: str, port: int) -> list[Place]:
        """All processes of the pod at `host`, which is taken to have as many as this one."""
        return [tcp(host, port + PORTS_PER_PROCESS * index) for index in range(self.count)]


def tcp(host: str, port: int) -> Place:
    """The process at `host` whose ports begin at `port`."""
    return Place(f"tcp://{host_port(host, port)}", f"tcp://{host_port(host, port + 1)}")


def _ipc(folder: Path, index: int) -> Place:
    return Place(f"ipc://{folder / f'{index}.load'}", f"ipc://{folder / f'{index}.snapshot'}")


def static_peers(text: str, port: int) -> list[tuple[str, int]]:
    """The hosts and ports of EPP_PEERS; `port` where none is given. Raises SettingsError."""
    parts = (part.strip() for part in text.split(","))
    return [_host_and_port(part, port) for part in parts if part]


def _host_and_port(text: str, port: int) -> tuple[str, int]:
    host, _, given = text.rpartition(":")
    if text.startswith("["):
        host, _, given = text[1:].partition("]")
        given = given.removeprefix(":")
    elif not host or ":" in host:
        host, given = text, ""
    if not host or (given and not (given.isdecimal() and 0 < int(given) < 65536)):
        raise SettingsError(f"EPP_PEERS: {text!r}: expected host or host:port, as in 10.0.0.7:9092")
    return host, int(given) if given else port


def own_addresses() -> frozenset[str]:
    """IP addresses of this machine as far as it knows, in a pod the pod's own: no peers are to be found there."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return frozenset()
    return frozenset(str(entry[4][0]) for entry in found)


def without(hosts: Iterable[str], excluded: Iterable[str]) -> list[str]:
    """`hosts` without those that are written or meant like one of `excluded`."""
    known = {_plain(host) for host in excluded}
    return [host for host in hosts if _plain(host) not in known]


def _plain(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
