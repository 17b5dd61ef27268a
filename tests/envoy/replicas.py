"""Replicas of the picker behind one Envoy, and clients whose conversations go on through it all."""

import http.client
import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epp.settings import TransportName
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, Worker, running_picker, running_workers, write_endpoints
from tests.envoy.chain import worker_options
from tests.waiting import eventually, free_ports

_TURNS = 8
_WORDS_A_TURN = 150


class Replicas:
    """Any number of replicas that can be started and stopped one by one, each with ports of its own."""

    def __init__(self, folder: Path, count: int, settings: dict[str, str]) -> None:
        key = folder / "key"
        key.write_text("a key that all replicas have")
        ports = free_ports(5 * count)
        self.ports = ports[:count]
        peers = ports[count::4]
        common = {
            "EPP_PEERS": ",".join(f"127.0.0.1:{port}" for port in peers),
            "EPP_PEER_KEY_FILE": str(key),
            "EPP_PEER_SILENCE_SECONDS": "1",
            **settings,
        }
        own = [
            {"EPP_GRPC_PORT": str(port), "EPP_PEER_PORT": str(peer)}
            for port, peer in zip(self.ports, peers, strict=True)
        ]
        self._settings = [{**common, **each} for each in own]
        self._folders = [folder / f"replica-{i}" for i in range(count)]
        self._stacks = [ExitStack() for _ in range(count)]
        self.running: dict[int, Picker] = {}

    def start(self, i: int) -> None:
        """Start replica `i` and wait until it is ready."""
        self._folders[i].mkdir(exist_ok=True)
        self.running[i] = self._stacks[i].enter_context(
            running_picker(self._settings[i], self._folders[i], stop_seconds=60)
        )

    def stopped(self, i: int) -> int:
        """Wait for the end of replica `i`; its exit status."""
        status = self.running.pop(i).process.wait(60)
        self._stacks[i].close()
        return status

    def status(self, i: int) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.running[i].admin_port}/status", timeout=30) as response:
            return json.load(response)

    def open(self, i: int) -> int:
        """Exchanges on replica `i`."""
        return int(self.status(i)["exchanges"]["open"])

    def mirrored(self, i: int) -> int:
        """Requests of others that count at replica `i`."""
        return sum(peer["reservations"] for peer in self.status(i)["peers"]["peers"])

    def in_step(self) -> bool:
        """Whether all that run share their load with all others that run."""
        others = len(self.running) - 1
        peers = [self.status(i)["peers"]["peers"] for i in self.running]
        return all(
            sum(peer["present"] and peer["in_step"] and peer["hears_us"] for peer in each) == others for each in peers
        )

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()


@dataclass(frozen=True)
class World:
    envoy: Envoy
    replicas: Replicas
    workers: list[Worker]

    def healthy(self) -> int:
        """Replicas that Envoy sends streams to."""
        return self.envoy.stats("cluster.picker.membership")["cluster.picker.membership_healthy"]


@contextmanager
def running_world(
    folder: Path,
    model: Path,
    *,
    carrier: TransportName,
    workers: int = 3,
    worker_arguments: Sequence[str] = (),
    settings: dict[str, str] | None = None,
    **envoy: Any,
) -> Iterator[World]:
    """Two replicas, workers that both know, and an Envoy that checks the replicas' health."""
    with ExitStack() as stack:
        arguments = {f"w{i}": (*worker_options(model), *worker_arguments) for i in range(workers)}
        running = stack.enter_context(running_workers(arguments, folder))
        write_endpoints(running, folder / "endpoints.json")
        given = {
            "EPP_ENDPOINTS_FILE": str(folder / "endpoints.json"),
            "EPP_TOKENIZER_PATH": str(model),
            "EPP_TRANSPORT": carrier,
            "EPP_DRAIN_DELAY_SECONDS": "1.5",
            **(settings or {}),
        }
        replicas = Replicas(folder, 2, given)
        stack.callback(replicas.close)
        for i in (0, 1):
            replicas.start(i)
        eventually(replicas.in_step, 60)
        config = EnvoyConfig(picker_port=replicas.ports[0], more_picker_ports=tuple(replicas.ports[1:]), **envoy)
        proxy = stack.enter_context(running_envoy(config, folder=folder))
        world = World(proxy, replicas, running)
        eventually(lambda: world.healthy() == 2)
        yield world


@dataclass(frozen=True)
class Ask:
    """One request of a client and what came of it."""

    at: float
    status: int
    """0: the connection broke."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    said: str = ""


@dataclass
class Clients:
    """Conversations, turn after turn, that several clients have at the same time."""

    port: int
    asks: list[Ask] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, count: int) -> None:
        for i in range(count):
            thread = threading.Thread(target=self._talk, args=(random.Random(i), i))
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def answered(self, since: float) -> int:
        """Requests that were answered since then."""
        return sum(ask.at >= since for ask in self.asks)

    def failed(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.status != 200]

    def cached_share(self, begin: float, end: float) -> float:
        """Of all prompt tokens asked for in that time."""
        asks = [ask for ask in self.asks if begin <= ask.at < end]
        return sum(ask.cached_tokens for ask in asks) / max(sum(ask.prompt_tokens for ask in asks), 1)

    def _talk(self, draw: random.Random, number: int) -> None:
        # Each begins in the middle of a conversation, so that at any time all turns are as frequent.
        turn, text = number % _TURNS, _words(draw, number % _TURNS)
        while not self._over.is_set():
            turn += 1
            if turn > _TURNS:
                turn, text = 1, ""
            text += _words(draw, 1)
            self.asks.append(ask(self.port, text))
            time.sleep(0.02 * draw.random())


def _words(draw: random.Random, turns: int) -> str:
    return "".join(f"{draw.randrange(10**6)} " for _ in range(turns * _WORDS_A_TURN))


def ask(port: int, text: str, *, max_tokens: int = 2) -> Ask:
    """One chat, not streamed."""
    raw = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}).encode()
    at = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", raw, {"content-type": "application/json"})
        response = connection.getresponse()
        body = response.read()
    except OSError as error:
        return Ask(at, 0, said=str(error))
    except http.client.HTTPException as error:
        return Ask(at, 0, said=repr(error))
    finally:
        connection.close()
    if response.status != 200:
        return Ask(at, response.status, said=body.decode(errors="replace"))
    usage = json.loads(body)["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Ask(at, response.status, usage["prompt_tokens"], cached)


def get(port: int, path: str) -> int:
    """The status of a request without a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
