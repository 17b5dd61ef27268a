"""ZMQ between replicas: what we publish, and one subscription for each place where a peer may be."""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import zmq

from epp.kvcache.drain import Drain
from epp.peers.curve import Authenticator, Context, CurveKey
from epp.peers.group import Group

_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_STEP = 16
"""Messages of one link that are taken in without a pause."""


@dataclass(slots=True, eq=False)
class Link:
    """A place where a peer may be heard."""

    address: str
    socket: zmq.Socket[bytes]
    since: float
    work: Callable[[], bool] = lambda: False
    heard_at: float | None = None
    peer: int | None = None
    """Who was heard there last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierOptions:
    """Where this process is heard."""

    places: tuple[str, ...]
    """ZMQ addresses to publish at: ipc within the pod, tcp for other pods."""
    key: CurveKey | None = None
    """For tcp; None: plain text, which the operator asked for."""
    queue_messages: int = 10_000
    """That wait for one slow peer; what comes beyond is lost to it, and mended by the whole state."""


class Carrier:
    """Sends what the group says and hands it what is heard, between `start` and `stop`."""

    def __init__(self, group: Group, options: CarrierOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._options = options
        self._clock = clock
        self._context: Context | None = None
        self._drain: Drain | None = None
        self._authenticator: Authenticator | None = None
        self._out: list[zmq.Socket[bytes]] = []
        self.links: dict[str, Link] = {}
        self._ourselves: set[str] = set()
        """Links where we heard ourselves."""

    @property
    def refused(self) -> int:
        """Connections with a key that is not ours."""
        return self._authenticator.refused if self._authenticator else 0

    @property
    def context(self) -> Context:
        """The ZMQ context, in which the key is known; only between `start` and `stop`."""
        assert self._context is not None
        return self._context

    @property
    def drain(self) -> Drain:
        """What serves the sockets; only between `start` and `stop`."""
        assert self._drain is not None
        return self._drain

    def start(self) -> None:
        """Publish. Raises OSError when a place cannot be had."""
        self._context = zmq.Context(io_threads=1)
        self._drain = Drain()
        if self._options.key is not None:
            self._authenticator = Authenticator(self._options.key, self._context, self._drain)
        for place in self._options.places:
            out = self._socket(zmq.PUB)
            if self._options.key is not None and place.startswith("tcp:"):
                self._options.key.serve(out)
            self._out.append(out)
            try:
                out.bind(place)
            except zmq.ZMQError as error:
                raise OSError(f"{place}: {error.strerror}") from None

    def stop(self) -> None:
        """Close all sockets; what was sent last still gets a moment to leave."""
        for address in list(self.links):
            self._close(address)
        for out in self._out:
            out.close(linger=200)
        self._out.clear()
        if self._authenticator is not None:
            self._authenticator.stop()
        if self._drain is not None:
            self._drain.close()
            self._drain = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def follow(self, addresses: Iterable[str]) -> None:
        """Listen at exactly these places; one that is gone from the list is left when nobody speaks there any more."""
        wanted = set(addresses) - self._ourselves - set(self._options.places)
        for address in wanted - self.links.keys():
            self._open(address)
        for address in self.links.keys() - wanted:
            if not self._alive(self.links[address]):
                self._close(address)

    def send(self, data: bytes) -> None:
        """To every peer; never waits."""
        for out in self._out:
            out.send(data, zmq.NOBLOCK)

    def _alive(self, link: Link) -> bool:
        peer = self._group.peers.get(link.peer) if link.peer is not None else None
        return peer is not None and peer.present and peer.link == link.address

    def _open(self, address: str) -> None:
        sub = self._socket(zmq.SUB)
        if self._options.key is not None and address.startswith("tcp:"):
            self._options.key.connect(sub)
        sub.setsockopt(zmq.SUBSCRIBE, b"")
        link = Link(address, sub, self._clock())
        link.work = lambda: self._read(link)
        self.links[address] = link
        sub.connect(address)
        self.drain.watch(sub, link.work)

    def _close(self, address: str) -> None:
        link = self.links.pop(address)
        self.drain.forget(link.socket)
        link.socket.close(linger=0)

    def _read(self, link: Link) -> bool:
        for _ in range(_STEP):
            if link.socket.closed:
                return False
            try:
                frames = link.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            now = self._clock()
            sender = self._group.receive(link.address, frames[0], now)
            if sender == self._group.me:
                self._ourselves.add(link.address)
                self._close(link.address)
                return False
            if sender is not None:
                link.heard_at, link.peer = now, sender
        return True

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self.context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.IPV6, socket.has_ipv6)
        made.setsockopt(zmq.SNDHWM, self._options.queue_messages)
        made.setsockopt(zmq.RCVHWM, self._options.queue_messages)
        made.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        made.setsockopt(zmq.RECONNECT_IVL, 100)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        # A cut line is noticed and a new one made.
        made.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        made.setsockopt(zmq.HEARTBEAT_TTL, 3000)
        return made
