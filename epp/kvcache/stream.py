"""The event stream of one rank over ZMQ: a live SUB socket and, while it is needed, a replay DEALER socket.

Live messages are `[topic, number, batch]`. A replay is asked for with `["", first number]` and answered with
`["", number, batch]` or, from vLLM 0.26 on, `["", topic, number, batch]` for each batch; the end marker has the
number FFFFFFFFFFFFFFFF. Numbers are 8 bytes, big-endian.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from epp.kvcache.drain import Drain
from epp.kvcache.rank import Rank
from epp.kvcache.sequence import Offer, Sequence
from epp.kvcache.turns import Turns

_log = structlog.get_logger()

_END = (1 << 64) - 1
MONITORED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
DISCONNECTED = zmq.Event.DISCONNECTED
MAX_WAITING = 256
"""Ordered batches that wait for the index before the socket is left alone; beyond it ZMQ's own queue fills."""
_PATIENCE_SECONDS = 0.2
"""Without any reply, after which a replay leaves its turn to the next stream; replies are still taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Bounds of one stream."""

    high_water_mark: int = 10_000
    max_message_bytes: int = 64 * 1024 * 1024
    replay_idle_seconds: float = 2.0
    mend_seconds: float = 30.0
    """Between tries to mend what replays without an answer left."""
    heartbeat_seconds: float = 5.0
    silent_seconds: float = 15.0
    """Without any answer to heartbeats, after which a connection counts as broken."""
    replays_at_once: int = 32
    """Replays that are read at the same time, over all streams: each may bring the publisher's whole buffer."""
    max_held: int = 20_000
    max_parked: int = 4096
    topic: str = ""


Message = tuple[bytes, int, bytes]
"""Publisher (empty where messages do not name it), number, batch."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The form of live messages."""

    message: Callable[[list[bytes]], Message | None]
    """What its frames say; None for what is no message."""
    topic: bytes = b""
    """Prefix of the topics; empty: as the options say."""


def _engine_message(frames: list[bytes]) -> Message | None:
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return b"", int.from_bytes(frames[1], "big"), frames[2]


ENGINE_WIRE = Wire(_engine_message)


@dataclass(slots=True)
class StreamCounts:
    """What came over the sockets."""

    messages: int = 0
    bad_frames: int = 0
    connections: int = 0
    full_queues: int = 0
    passed_over: int = 0
    """Live batches that were left to the replay which had not begun yet."""
    faults: int = 0
    filled: int = 0
    """Times that the rank began with what an image of it held."""
    refused: int = 0
    """Images of the rank that were of another process, or that nobody could prove."""


@dataclass(slots=True)
class _Forget:
    """Stands in the queue of batches where the publisher turned out to be a new one."""


@dataclass(slots=True)
class _Fill:
    """Stands in the queue where all up to batch `sequence` goes into the index at once, in `steps`."""

    sequence: int
    steps: Iterator[None]


class Stream:
    """Follows one publisher from `open` to `close`; nothing that it sends stops the stream."""

    def __init__(
        self,
        rank: Rank,
        drain: Drain,
        turns: Turns,
        context: zmq.Context[zmq.Socket[bytes]],
        options: StreamOptions,
        *,
        events: str | None,
        replay: str | None,
        on_disconnect: Callable[[], None] = lambda: None,
        wire: Wire = ENGINE_WIRE,
    ) -> None:
        self._rank = rank
        self._drain = drain
        self._turns = turns
        self._context = context
        self._options = options
        self._events = events
        self._replay = replay
        self._on_disconnect = on_disconnect
        self._wire = wire
        self._publisher: bytes | None = None
        self._queue: deque[tuple[int, bytes] | _Forget | _Fill] = deque()
        self._feeding: Iterator[None] | None = None
        self._feeding_number = 0
        self._filling: Iterator[None] = iter(())
        self.indexed: int | None = None
        """Number of the last batch that is in the index with all its events; None before the first."""
        self._open = False
        self._live: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replies: zmq.Socket[bytes] | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._replay_from: int | None = None
        """First batch of a replay that waits for its turn."""
        self.connected = False
        self.last_message_at: float | None = None
        self.counts = StreamCounts()
        self.sequence = Sequence(self, can_replay=replay is not None, max_held=options.max_held)

    def open(self) -> None:
        """Connect soon; ZMQ keeps trying. Without an address messages come by `receive`."""
        self._open = True
        if self._events is not None:
            self._drain.wake(self._connect)

    def _connect(self) -> bool:
        if not self._open or self._events is None:
            return False
        live = self._context.socket(zmq.SUB)
        live.setsockopt(zmq.RCVHWM, self._options.high_water_mark)
        live.setsockopt(zmq.SUBSCRIBE, self._wire.topic or self._options.topic.encode())
        harden(live, self._options)
        self._live = live
        self._monitor = live.get_monitor_socket(MONITORED)
        self._drain.watch(self._monitor, self._work)
        self._drain.watch(live, self._work)
        live.connect(self._events)
        return False

    def close(self) -> None:
        """The index forgets the rank at once, what is queued is dropped, and the sockets are closed soon."""
        self._open = False
        self._end_replay()
        for socket in (self._live, self._monitor, self._replies):
            if socket is not None:
                self._drain.forget(socket)
        self._queue.clear()
        self._feeding = None
        self._rank.close()
        self._drain.wake(self._rank.sweep)
        self._drain.wake(self._disconnect)

    def _disconnect(self) -> bool:
        self._close_replies()
        if self._live is not None and self._monitor is not None:
            self._live.disable_monitor()
            self._monitor.close(linger=0)
            self._live.close(linger=0)
        self._live = self._monitor = None
        return False

    @property
    def waiting(self) -> int:
        """Ordered batches that are not in the index yet."""
        return len(self._queue) + (self._feeding is not None)

    @property
    def settled(self) -> bool:
        """Whether no batch is half in the index."""
        return self._feeding is None

    def offer(self, offer: Offer, filling: Iterator[None]) -> None:
        """Begin with what `offer` tells of, if it proves to be of this publisher; `filling` brings it in."""
        self._filling = filling
        self.sequence.offer(offer)

    def receive(self, frames: list[bytes]) -> None:
        """A message that came by a socket of others; the first one, or the first after `lost`, is a new connection."""
        if not self.connected:
            self._stands()
        self._on_live(frames)

    def lost(self) -> None:
        """Messages may be missing from now on, until the next `receive`."""
        self.connected = False

    # What `Sequence` asks for.

    def apply(self, seq: int, payload: bytes) -> None:
        """Queue the next batch for the index."""
        self._queue.append((seq, payload))
        self._drain.wake(self._work)

    def accept(self) -> None:
        """Queue what was offered."""
        self.counts.filled += 1
        self._queue.append(_Fill(self.sequence.last or 0, self._filling))
        self._drain.wake(self._work)

    def refuse(self) -> None:
        """Forget what was offered."""
        self.counts.refused += 1
        self._filling = iter(())

    def forget(self) -> None:
        """Queue the forgetting of all that the former publisher held."""
        self._queue.append(_Forget())
        self._drain.wake(self._work)

    def ask_replay(self, start: int) -> None:
        """Send the request on a new replay socket, when its turn comes."""
        self._end_replay()
        self._close_replies()
        if self._replay is not None and self._open:
            self._replay_from = start
            self._turns.take(self._begin_replay)

    def _begin_replay(self) -> None:
        if self._replay is None or self._replay_from is None:
            return
        start, self._replay_from = self._replay_from, None
        self._replies = self._context.socket(zmq.DEALER)
        self._replies.setsockopt(zmq.RCVHWM, 0)  # bounded by the publisher's replay buffer and `max_held`
        harden(self._replies, self._options)
        self._replies.connect(self._replay)
        self._replies.send_multipart([b"", start.to_bytes(8, "big")])
        self._drain.watch(self._replies, self._read_replies)
        self._wait_for_reply()
        leave = partial(self._turns.leave, self._begin_replay)
        self._patience = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, leave)

    # Slices of work.

    def _work(self) -> bool:
        """One step: feed the index, or read one live message."""
        if not self._open:
            return False
        if self._feeding is not None or self._queue:
            self._feed()
            return True
        if self._live is None:
            return False
        try:
            frames = self._live.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            self._read_monitor()
            return bool(self._queue)
        self._read_monitor()  # a new connection goes before what came over it
        self._on_live(frames)
        return True

    def _feed(self) -> None:
        try:
            if self._feeding is None:
                item = self._queue.popleft()
                if isinstance(item, _Forget):
                    self._rank.forget()
                    self.indexed = None
                    self._drain.wake(self._rank.sweep)
                    return
                self._begin(item)
            assert self._feeding is not None
            next(self._feeding)
        except StopIteration:
            self._feeding = None
            self.indexed = self._feeding_number
            if self._rank.cleared_last:
                self.sequence.cleared()
                self._drain.wake(self._rank.sweep)
        except Exception:  # noqa: BLE001 - whatever a batch does to us, the next one is read
            self._feeding = None
            self.counts.faults += 1
            if self.counts.faults == 1:
                _log.exception("KV events could not be indexed", events=self._events)

    def _begin(self, item: tuple[int, bytes] | _Fill) -> None:
        if isinstance(item, _Fill):
            self._feeding_number, self._feeding = item.sequence, item.steps
        else:
            self._feeding_number, self._feeding = item[0], self._rank.feed(item[1])

    def _on_live(self, frames: list[bytes]) -> None:
        message = self._wire.message(frames)
        if message is None:
            self.counts.bad_frames += 1
            return
        publisher, number, payload = message
        self.counts.messages += 1
        self.last_message_at = time.monotonic()
        if self._publisher not in (None, publisher):
            self.sequence.replaced()
        self._publisher = publisher
        if self._replay_from is None:
            self.sequence.live(number, payload)
        else:
            self.counts.passed_over += 1

    def _read_replies(self) -> bool:
        if self._replies is None or not self._open:
            return False
        if len(self._queue) >= MAX_WAITING:
            self.counts.full_queues += 1
            self._feed()
            return True
        try:
            frames = self._replies.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._on_reply(frames)
        return True

    def _on_reply(self, frames: list[bytes]) -> None:
        if len(frames) not in (3, 4) or len(frames[-2]) != 8:
            self.counts.bad_frames += 1
            return
        number = int.from_bytes(frames[-2], "big")
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if number == _END:
            self._end_replay()
            self._close_replies()
            self.sequence.replay_ended()
        else:
            self._wait_for_reply()
            self.sequence.replayed(number, frames[-1])

    def _read_monitor(self) -> None:
        while self._monitor is not None and (event := next_event(self._monitor)) is not None:
            if event == DISCONNECTED:
                self.connected = False
                self._on_disconnect()
            else:
                self._stands()

    def _stands(self) -> None:
        self.connected = True
        self.counts.connections += 1
        self.sequence.connected()

    def _wait_for_reply(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(self._options.replay_idle_seconds, self._reply_timed_out)

    def _reply_timed_out(self) -> None:
        self._end_replay()
        self._close_replies()
        self.sequence.replay_timed_out()

    def _end_replay(self) -> None:
        for timer in (self._timeout, self._patience):
            if timer is not None:
                timer.cancel()
        self._timeout = self._patience = None
        self._replay_from = None
        self._turns.leave(self._begin_replay)

    def _close_replies(self) -> None:
        if self._replies is not None:
            self._drain.forget(self._replies)
            self._replies.close(linger=0)
            self._replies = None


def next_event(monitor: zmq.Socket[bytes]) -> int | None:
    """What happened next to a monitored socket; None: nothing yet, or the monitor is closed."""
    if monitor.closed or not int(monitor.get(zmq.EVENTS)) & zmq.POLLIN:
        return None
    return parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"]


def harden(socket: zmq.Socket[bytes], options: StreamOptions) -> None:
    """Bounds against what a peer may do, and heartbeats that notice a half-open connection."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, options.max_message_bytes)
    socket.setsockopt(zmq.RECONNECT_IVL, 200)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(options.heartbeat_seconds * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(options.silent_seconds * 1000))
