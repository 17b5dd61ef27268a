"""Real processes that share load: killed, stopped, cut off, slow, lossy, and of two versions."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from epp.peers.wire import VERSION
from tests.waiting import eventually, free_ports

pytestmark = pytest.mark.timeout(300)

SILENCE_SECONDS = 2.0
_ANSWER_SECONDS = 120.0
"""Much longer than a start takes, as a busy machine is no failure."""
NAMESPACES = (f"epp-peers-{os.getpid()}-a", f"epp-peers-{os.getpid()}-b")


class Speaker:
    """One process, and how it sees things."""

    def __init__(self, settings: dict[str, str], version: int = VERSION, before: Sequence[str] = ()) -> None:
        command = [*before, sys.executable, "-m", "tests.peers.speaker", json.dumps(settings), str(version)]
        folder = Path(__file__).parents[2]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=folder)

    def ask(self, **command: object) -> Any:
        """Obey a command, and say how things stand."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        assert select.select([self.process.stdout], [], [], _ANSWER_SECONDS)[0], "no answer"
        return json.loads(self.process.stdout.readline())

    def in_flight(self) -> list[int]:
        return list(self.ask()["in_flight"])

    def hears(self) -> int:
        """Peers whose load counts here, all of it."""
        return sum(peer["present"] and peer["in_step"] and peer["hears_us"] for peer in self.ask()["peers"])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """In good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0

    def kill(self) -> None:
        """At once."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def sees(speaker: Speaker, in_flight: list[int]) -> Callable[[], bool]:
    return lambda: speaker.in_flight() == in_flight


@contextmanager
def speaking(
    folder: Path, versions: Sequence[int], *, hosts: Sequence[str] = (), before: Sequence[Sequence[str]] = ()
) -> Iterator[list[Speaker]]:
    """One process for each of `versions`, all of which know each other by a key."""
    settings = settings_of(folder, len(versions), hosts)
    with ExitStack() as stack:
        speakers = []
        for i, version in enumerate(versions):
            speakers.append(Speaker(settings[i], version, before[i] if before else ()))
            stack.callback(speakers[-1].kill)
        try:
            eventually(lambda: all(each.hears() == len(versions) - 1 for each in speakers), 120)
        except AssertionError:
            print(*(each.ask() for each in speakers), sep="\n")
            raise
        yield speakers


def settings_of(folder: Path, count: int, hosts: Sequence[str] = ()) -> list[dict[str, str]]:
    key = folder / "key"
    key.write_text("a key of more than sixteen bytes")
    ports = free_ports(count)
    places = list(zip(hosts or ["127.0.0.1"] * count, ports, strict=True))
    common = {
        "EPP_PEERS": ",".join(f"{host}:{port}" for host, port in places),
        "EPP_PEER_KEY_FILE": str(key),
        "EPP_PEER_BEAT_SECONDS": "0.1",
        "EPP_PEER_SILENCE_SECONDS": str(SILENCE_SECONDS),
    }
    return [{**common, "EPP_PEER_PORT": str(port), "EPP_HOST": host} for host, port in places]


def test_what_a_killed_replica_had_counts_until_its_beats_have_stopped(tmp_path: Path):
    with speaking(tmp_path, [VERSION] * 3) as (one, two, three):
        one.ask(reserve=3)
        two.ask(reserve=1, at=1)
        for each in (one, two, three):
            eventually(sees(each, [3, 1]))
        killed = time.monotonic()
        one.send(signal.SIGKILL)
        one.process.wait()
        for each in (two, three):
            eventually(sees(each, [0, 1]))
            assert each.ask()["vanished"] == 1
        assert time.monotonic() - killed > 0.5 * SILENCE_SECONDS, "not before its heartbeat has stopped for long enough"


def test_one_that_ends_in_good_order_takes_its_load_along_at_once(tmp_path: Path):
    with speaking(tmp_path, [VERSION] * 2) as (one, two):
        one.ask(reserve=3)
        eventually(sees(two, [3, 0]))
        one.end()
        eventually(sees(two, [0, 0]))
        assert two.ask()["vanished"] == 0


def test_a_stopped_replica_is_dropped_and_counted_once_when_it_goes_on(tmp_path: Path):
    with speaking(tmp_path, [VERSION] * 2) as (one, two):
        one.ask(reserve=3)
        two.ask(reserve=2, at=1)
        eventually(sees(two, [3, 2]))
        one.send(signal.SIGSTOP)
        eventually(sees(two, [0, 2]))
        two.ask(reserve=1, at=1)
        one.send(signal.SIGCONT)
        eventually(sees(two, [3, 3]))
        eventually(sees(one, [3, 3]))
        one.ask(release=3)
        eventually(sees(two, [0, 3]))
        assert one.ask()["vanished"] == 0, "who slept does not take the others for dead"


def test_a_slow_replica_is_caught_up_with_and_slows_nobody(tmp_path: Path):
    with speaking(tmp_path, [VERSION] * 3) as (slow, one, two):
        slow.ask(block=[0.4, 0.01])
        one.ask(churn=400, reserve=2)
        two.ask(churn=400, reserve=1, at=1)
        eventually(lambda: slow.in_flight()[0] >= 2)
        eventually(lambda: one.hears() == two.hears() == 2)
        assert one.ask()["vanished"] == two.ask()["vanished"] == 0
        for each in (slow, one, two):
            each.ask(rest=True)
        for each in (slow, one, two):
            eventually(sees(each, [2, 1]))


@pytest.mark.parametrize("versions", [[VERSION] * 3, [VERSION, 2, VERSION]])
def test_what_a_tenth_of_lost_messages_breaks_heals_by_itself(tmp_path: Path, versions: list[int]):
    with speaking(tmp_path, versions) as speakers:
        for each in speakers:
            each.ask(lose=0.1, churn=100)
        eventually(lambda: all(any(peer["lost"] > 20 for peer in each.ask()["peers"]) for each in speakers), 120)
        for i, each in enumerate(speakers):
            each.ask(reserve=i + 1, at=i % 2)
        for each in speakers:
            each.ask(rest=True)
        # Messages are still lost, also those that mend.
        begun = time.monotonic()
        for each in speakers:
            eventually(sees(each, [4, 2]))
        print(f"all as they should be after {time.monotonic() - begun:.2f} s")
        for each in speakers:
            each.ask(release=each.ask()["own"])
        for each in speakers:
            eventually(sees(each, [0, 0]))
            assert each.ask()["vanished"] == 0


def test_a_rolling_update_from_the_previous_version(tmp_path: Path):
    settings = settings_of(tmp_path, 2)
    with ExitStack() as stack:
        old = [Speaker(each, 2) for each in settings]
        for each in old:
            stack.callback(each.kill)
        eventually(lambda: all(each.hears() == 1 for each in old), 60)
        old[0].ask(reserve=1)
        old[1].ask(reserve=2)
        eventually(sees(old[1], [3, 0]))
        old[0].end()
        new = [Speaker(settings[0])]
        stack.callback(new[0].kill)
        new[0].ask(reserve=4, at=1)
        for each in (old[1], new[0]):
            eventually(sees(each, [2, 4]), 60)
        assert {peer["message_version"] for peer in old[1].ask()["peers"]} == {VERSION}
        assert {(peer["message_version"], peer["epp"]) for peer in new[0].ask()["peers"]} == {(2, "0.0.1")}
        old[1].ask(release=1)
        eventually(sees(new[0], [1, 4]))
        old[1].end()
        new.append(Speaker(settings[1]))
        stack.callback(new[1].kill)
        for each in new:
            eventually(sees(each, [0, 4]), 60)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a line between them, where 10.77.0.1 and 10.77.0.2 are."""
    made = _network(
        *(f"netns add {name}" for name in NAMESPACES),
        f"link add eppa netns {NAMESPACES[0]} type veth peer name eppb netns {NAMESPACES[1]}",
        *(f"-n {name} addr add 10.77.0.{i + 1}/24 dev epp{'ab'[i]}" for i, name in enumerate(NAMESPACES)),
        *(f"-n {name} link set epp{'ab'[i]} up" for i, name in enumerate(NAMESPACES)),
        *(f"-n {name} link set lo up" for name in NAMESPACES),
    )
    try:
        if made:
            if os.environ.get("CI") == "true":
                pytest.fail(f"no network namespaces: {made}")
            pytest.skip(f"no network namespaces: {made}")
        yield NAMESPACES
    finally:
        for name in NAMESPACES:
            _network(f"netns del {name}")


def _network(*commands: str) -> str:
    """Runs `ip` with each; what the first one that failed said."""
    for command in commands:
        try:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return "no `ip` here"
        if done.returncode:
            return done.stderr.strip()
    return ""


def test_each_side_of_a_partition_goes_on_alone_says_so_and_heals(tmp_path: Path, namespaces: tuple[str, str]):
    before = [("ip", "netns", "exec", name) for name in namespaces]
    with speaking(tmp_path, [VERSION] * 2, hosts=("10.77.0.1", "10.77.0.2"), before=before) as (one, two):
        one.ask(reserve=3)
        two.ask(reserve=2, at=1)
        for each in (one, two):
            eventually(sees(each, [3, 2]))
        assert _network(f"-n {namespaces[0]} link set eppa down") == ""
        eventually(sees(one, [3, 0]))
        eventually(sees(two, [0, 2]))
        for each in (one, two):
            assert "nothing is heard from" in each.ask()["problem"]
        one.ask(release=1)
        two.ask(reserve=1, at=1)
        assert _network(f"-n {namespaces[0]} link set eppa up") == ""
        for each in (one, two):
            eventually(sees(each, [2, 3]), 60)
            eventually(lambda each=each: each.ask()["problem"] == "", 60)
