"""All peers of this process: what is told to them, what they tell, who is silent. No sockets.

Time comes in as numbers of our own clock only, and silence is counted in our own beats: a process that was stopped for
a while does not take its peers for dead when it wakes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from epp import __version__
from epp.endpoints.endpoint import Endpoint
from epp.peers.mirror import Mirror
from epp.peers.notices import Notices
from epp.peers.own import OwnLoad
from epp.peers.prompts import PromptCounts, PromptExchange
from epp.peers.wire import VERSION, Beat, Heard, Message, Row, SentPrompt, Tie, WireError, decode, encode, endpoint_key
from epp.prompts.prompt import Prompt
from epp.scheduling.load import Load

_BEATS_KEPT = 64
"""Beats of ours whose time is kept, to tell the lag when a peer names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """Bounds of what peers may do here."""

    silent_beats: int = 12
    """Beats of ours without a word from a peer after which its load is dropped."""
    most_peers: int = 64
    most_reservations: int = 100_000
    """Of one peer."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """One other process, as far as heard."""

    id: int
    link: str
    """Where it was heard."""
    mirror: Mirror
    name: str = ""
    epp: str = ""
    version: int = 0
    silent: int = 0
    """Beats of ours since its last word."""
    present: bool = True
    """False: silent for too long, its load is dropped."""
    heard_at: float = 0.0
    beat: int = 0
    beat_at: float = 0.0
    lag: float | None = None
    """Seconds that our messages take to it, about: half a round trip."""
    same_keys: bool | None = None
    """Whether its prefix keys mean here what they mean there; None: it told of no prompt yet."""
    hears_us: int = 0
    """Beats of ours since it last said that it hears us."""


@dataclass(slots=True)
class GroupCounts:
    """What happened to messages."""

    sent: int = 0
    bytes_sent: int = 0
    received: int = 0
    bad: int = 0
    """Bytes that are no message of ours."""
    strangers: int = 0
    """Messages of processes beyond the most peers."""
    vanished: int = 0
    """Times that a peer's load was dropped for its silence."""


@dataclass(slots=True)
class _Places:
    """Which endpoint has which column, by key and back."""

    column: dict[int, int] = field(default_factory=dict)
    key: dict[int, int] = field(default_factory=dict)


class Group:
    """Speaks for this process, and mirrors what the others say in `load`."""

    def __init__(
        self,
        load: Load,
        me: int,
        name: str,
        *,
        rules: GroupRules | None = None,
        prompts: PromptExchange | None = None,
        notices: Notices | None = None,
    ) -> None:
        """`me` is a random number."""
        self.me = me
        self.name = name
        self.counts = GroupCounts()
        self._load = load
        self._rules = rules or GroupRules()
        self._prompts = prompts
        self._notices = Notices() if notices is None else notices
        self._notices.wake = self._woken
        self._places = _Places()
        self.wake: Callable[[], None] = lambda: None
        """Called when `flush` has something to send."""
        self.own = OwnLoad(self.key_of, self._woken)
        load.listener = self.own
        self._number = 0
        self._beat = 0
        self._beats: dict[int, float] = {}
        self._asks: dict[int, None] = {}
        self.peers: dict[int, Peer] = {}

    # The pool.

    def join(self, column: int, endpoint: Endpoint) -> None:
        """An endpoint has joined the pool, after the load has heard of it."""
        key = endpoint_key(endpoint)
        self._places.column[key], self._places.key[column] = column, key
        self._notices.join(column, endpoint)
        for peer in self.peers.values():
            peer.mirror.joined(key)

    def leave(self, column: int, endpoint: Endpoint) -> None:
        """An endpoint has left the pool."""
        self._notices.leave(column, endpoint)
        key = self._places.key.pop(column, None)
        if key is not None:
            self._places.column.pop(key, None)
            for peer in self.peers.values():
                peer.mirror.left(key)

    def key_of(self, column: int) -> int:
        """The `endpoint_key` of a pool column; 0 for one that nobody has."""
        return self._places.key.get(column, 0)

    def column_of(self, key: int) -> int | None:
        """The pool column of an endpoint."""
        return self._places.column.get(key)

    # What we say.

    @property
    def prompt_counts(self) -> PromptCounts:
        """What happened to prompts of others."""
        return self._prompts.others.counts if self._prompts is not None else PromptCounts()

    def picked(self, column: int, prompt: Prompt) -> None:
        """A pick of ours sent `prompt` to the endpoint of `column`."""
        if self._prompts is not None and self._prompts.own.picked(self.key_of(column), prompt):
            self.wake()

    def flush(self) -> bytes | None:
        """The next message of what changed; None when there is nothing. Call again while `pending`."""
        prompts = self._prompts.own.take() if self._prompts is not None else ()
        ties = self._notices.take()
        if self.own.changed or prompts or any(ties):
            rows, gone = self.own.take()
            return self._message(rows=rows, gone=gone, prompts=prompts, ties=ties)
        part = self.own.take_part()
        if part is not None:
            return self._message(rows=part[0], span=part[1])
        return self._message() if self._asks else None

    @property
    def pending(self) -> bool:
        """Whether there is something to send before the next beat."""
        prompts = len(self._prompts.own) if self._prompts is not None else 0
        return self.own.pending or bool(self._asks or prompts or len(self._notices))

    def beat(self, now: float, *, leaving: bool = False) -> list[bytes]:
        """What is still to be told, then a beat. Peers that were silent for too long lose their load here."""
        self._beat += 1
        self._beats[self._beat] = now
        self._beats.pop(self._beat - _BEATS_KEPT, None)
        for peer in list(self.peers.values()):
            self._judge(peer)
        messages = []
        while self.own.changed:
            rows, gone = self.own.take()
            messages.append(self._message(rows=rows, gone=gone))
        live, ids = (0, 0) if leaving else (self.own.live, self.own.ids)
        beat = Beat(self._beat, self.name, __version__, live, ids, self._heard_of(now), leaving)
        return [*messages, self._message(beat=beat)]

    def _heard_of(self, now: float) -> tuple[Heard, ...]:
        return tuple(
            Heard(peer.id, peer.beat, max(0, round((now - peer.beat_at) * 1e6)))
            for peer in self.peers.values()
            if peer.present and peer.beat
        )

    def _judge(self, peer: Peer) -> None:
        peer.silent += 1
        peer.hears_us += 1
        if peer.silent >= self._rules.silent_beats:
            if peer.present:
                self.counts.vanished += 1
                peer.present = False
                peer.mirror.drop()
            if peer.silent >= 10 * self._rules.silent_beats:
                del self.peers[peer.id]
        elif peer.mirror.torn:
            self._asks[peer.id] = None

    def _message(
        self,
        *,
        rows: tuple[Row, ...] = (),
        gone: tuple[int, ...] = (),
        span: tuple[int, int] | None = None,
        beat: Beat | None = None,
        prompts: tuple[SentPrompt, ...] = (),
        ties: tuple[tuple[Tie, ...], tuple[Tie, ...]] = ((), ()),
    ) -> bytes:
        self._number += 1
        asks, self._asks = tuple(self._asks), {}
        secret = self._prompts.secret_id() if prompts and self._prompts is not None else b""
        message = Message(
            VERSION, self.me, self._number, rows, gone, span, beat, asks, self._load.picks, prompts, secret, *ties
        )
        data = encode(message)
        self.counts.sent += 1
        self.counts.bytes_sent += len(data)
        return data

    # What they say.

    def receive(self, link: str, data: bytes, now: float) -> int | None:
        """Take in what came over `link`; the id of the sender, None for what is no message."""
        try:
            message = decode(data)
        except WireError:
            self.counts.bad += 1
            return None
        self.counts.received += 1
        if message.peer != self.me:
            peer = self._peer(message, link, now)
            if peer is not None:
                self._heard(peer, message, now)
        return message.peer

    def _peer(self, message: Message, link: str, now: float) -> Peer | None:
        """Who speaks; None for one too many, and for what comes over a second link while the first one works."""
        peer = self.peers.get(message.peer)
        if peer is None:
            if len(self.peers) >= self._rules.most_peers:
                self.counts.strangers += 1
                return None
            mirror = Mirror(self._load, self.column_of, most=self._rules.most_reservations)
            peer = self.peers[message.peer] = Peer(id=message.peer, link=link, mirror=mirror, heard_at=now)
        elif peer.link != link:
            if peer.silent < self._rules.silent_beats:
                return None
            peer.link = link
        return peer

    def _heard(self, peer: Peer, message: Message, now: float) -> None:
        was_torn = peer.mirror.torn
        if not peer.mirror.receive(message):
            return
        peer.silent, peer.present = 0, True
        peer.heard_at, peer.version = now, message.version
        if message.prompts and self._prompts is not None:
            self._heard_prompts(peer, message, self._prompts)
        if message.sessions or message.failed:
            self._notices.heard(message.sessions, message.failed)
        if message.beat is not None:
            self._heard_beat(peer, message.beat, now)
        if self.me in message.asks:
            self.own.tell_all()
        if peer.mirror.torn and not was_torn:
            self._ask(peer)

    def _heard_prompts(self, peer: Peer, message: Message, prompts: PromptExchange) -> None:
        peer.same_keys = message.secret == prompts.secret_id()
        if peer.same_keys:
            prompts.others.heard(message.prompts)
        else:
            prompts.others.counts.foreign += len(message.prompts)

    def _heard_beat(self, peer: Peer, beat: Beat, now: float) -> None:
        peer.name, peer.epp, peer.beat, peer.beat_at = beat.name, beat.epp, beat.number, now
        for heard in beat.heard:
            if heard.peer == self.me and heard.beat in self._beats:
                peer.hears_us = 0
                peer.lag = max(0.0, (now - self._beats[heard.beat] - heard.held_micros / 1e6) / 2)
        if beat.leaving:
            peer.mirror.drop()
            del self.peers[peer.id]

    def _ask(self, peer: Peer) -> None:
        self._asks[peer.id] = None
        self.wake()

    def _woken(self) -> None:
        self.wake()
