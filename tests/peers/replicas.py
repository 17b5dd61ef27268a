"""Replicas in one process, joined by links that lose what a test wants lost."""

from collections.abc import Callable, Sequence

import numpy as np

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.pool import Pool
from epp.peers.group import Group, GroupRules
from epp.scheduling.load import Load, Prefill, Reservation, Work
from tests.scheduling.worlds import HandClock

BEAT_SECONDS = 0.25


def endpoint(i: int) -> Endpoint:
    return Endpoint(name=f"w{i}", uid=f"uid-{i}", address=f"10.0.0.{i + 1}", port=8000)


def work(tokens: int = 1000, *, seconds: float = 1.0, shown: bool = True) -> Work:
    return Work(prefill_tokens=tokens, context_tokens=tokens, prefill_seconds=seconds, shown=shown)


class Replica:
    """One picker's load and what it knows of the others."""

    def __init__(self, name: int, order: Sequence[int], *, rules: GroupRules | None = None) -> None:
        self.clock = HandClock()
        self.clock.now = 1e4 * name  # clocks differ
        self.pool = Pool()
        self.seen: list[Prefill] = []
        self.load = Load(self.clock, self.seen.append)
        self.pool.on_join(self.load.join)
        self.pool.on_leave(self.load.leave)
        self.group = Group(self.load, name, f"replica-{name}", rules=rules or GroupRules(silent_beats=4))
        self.pool.on_join(self.group.join)
        self.pool.on_leave(self.group.leave)
        self.pool.replace(endpoint(i) for i in order)
        self.out: list[bytes] = []

    def column(self, i: int) -> int | None:
        snapshot = self.pool.snapshot()
        position = snapshot.position.get(endpoint(i).host_port)
        return None if position is None else int(snapshot.columns[position])

    def reserve(self, i: int, asked: Work | None = None, *, prefill: Reservation | None = None) -> Reservation:
        column = self.column(i)
        assert column is not None
        return self.load.reserve(column, asked or work(), prefill=prefill)

    def flush(self) -> None:
        while (data := self.group.flush()) is not None:
            self.out.append(data)

    def beat(self, *, leaving: bool = False) -> None:
        self.out.extend(self.group.beat(self.clock.now, leaving=leaving))

    def sums(self, i: int) -> tuple[int, int, int, float]:
        """In flight, prefill tokens, decode tokens and promised seconds of endpoint `i`."""
        column = self.column(i)
        assert column is not None
        promised = float(self.load.view(np.array([column]), self.clock.now).wait_seconds[0])
        load = self.load
        return int(load.in_flight[column]), int(load.prefill_tokens[column]), int(load.decode_tokens[column]), promised


class World:
    """Replicas and all links between them."""

    def __init__(self, *replicas: Replica) -> None:
        self.replicas = list(replicas)

    def deliver(self, arrives: Callable[[int, int], bool] = lambda _of, _at: True) -> None:
        """Bring every message that was sent to everybody else; `arrives(sender, receiver)` may lose it."""
        for sender in self.replicas:
            messages, sender.out = sender.out, []
            for data in messages:
                for receiver in self.replicas:
                    if receiver is not sender and arrives(sender.group.me, receiver.group.me):
                        receiver.group.receive(f"link-{sender.group.me}", data, receiver.clock.now)

    def beats(self, count: int, arrives: Callable[[int, int], bool] = lambda _of, _at: True) -> None:
        """Let so many beats pass, with all that is said meanwhile."""
        for _ in range(count):
            for replica in self.replicas:
                replica.clock.now += BEAT_SECONDS
                replica.load.advance(replica.clock.now)
                replica.beat()
            for _ in range(3):  # beats, asks, answers
                self.deliver(arrives)
                for replica in self.replicas:
                    replica.flush()
            self.deliver(arrives)
