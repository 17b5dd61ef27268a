"""A million index entries from one process to another, encrypted over loopback, while the giver serves lookups.

`warm_start` is the time from the first question to the filled index of the taker. `warm_start_p99` is how long a lookup
of 2,048 blocks takes the giver meanwhile, its wait for the event loop included (99 of 100); its baseline is before.
"""

import asyncio
import multiprocessing
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
import uvloop
import zmq

from benchmarks.report import report
from epp.kvcache.drain import Drain
from epp.kvcache.events import Stored
from epp.kvcache.image import RankImage, anchors_of, fill
from epp.kvcache.keys import PrefixKeys
from epp.kvcache.run_index import RunIndex
from epp.kvcache.snapshot import RankPieces, encode
from epp.peers.curve import Authenticator, CurveKey
from epp.peers.giver import Giver, Stock
from epp.peers.handover import VERSION, Opening
from epp.peers.taker import Shelf, Taker
from epp.prompts.prompt import Prompt

RANKS, PROMPTS, PROMPT_BLOCKS, BLOCK = 8, 62, 2048, 16
PAUSE_SECONDS = 0.005
QUIET_SECONDS = 4.0
KEY = CurveKey(*zmq.curve_keypair())
SECRET = bytes(range(32))


def main(_rows: list[str]) -> None:
    """Print both rows."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    taker = spawn.Process(target=_taker, args=(theirs, KEY.public, KEY.secret), daemon=True)
    taker.start()
    quiet, busy, seconds, blocks = uvloop.run(_give(ours))
    taker.join()
    assert blocks == RANKS * PROMPTS * PROMPT_BLOCKS
    report("warm_start", seconds, "s")
    report("warm_start_p99", busy * 1000, "ms", quiet * 1000)


def _tokens(rank: int, prompt: int) -> np.ndarray:
    return np.random.default_rng(rank * PROMPTS + prompt).integers(0, 128_000, PROMPT_BLOCKS * BLOCK, dtype=np.uint32)


def _filled() -> tuple[RunIndex, list[RankPieces]]:
    index = RunIndex(PrefixKeys(SECRET))
    pieces = []
    for rank in range(RANKS):
        opened = index.open(rank)
        for prompt in range(PROMPTS):
            first = (rank * PROMPTS + prompt) * PROMPT_BLOCKS
            names = list(range(first, first + PROMPT_BLOCKS))
            index.store(opened, Stored(names, None, array("I", _tokens(rank, prompt).tobytes()), BLOCK))
        pieces.append(RankPieces(_image(rank), index.capture(opened)))
    return index, pieces


def _image(rank: int) -> RankImage:
    return RankImage(
        source=f"tcp://10.0.0.{rank}:5557",
        incarnation=(f"w{rank}", "uid", 0, f"10.0.0.{rank}:8000"),
        sequence=1,
        digests={1: 1},
        complete=True,
        block_size=BLOCK,
        groups={0: True},
    )


async def _give(told: Connection) -> tuple[float, float, float, int]:
    index, pieces = _filled()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    drain = Drain()
    Authenticator(KEY, context, drain)

    def snapshot() -> Iterator[bytes]:
        return encode(index.secret_id, pieces)

    giver = Giver(Stock(warm=lambda: True, opening=lambda: Opening(VERSION, SECRET), snapshot=snapshot))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    giver.start(context, drain, [f"tcp://127.0.0.1:{port}"], KEY)
    begun = time.monotonic()
    quiet = await _lookups(index, lambda: time.monotonic() > begun + QUIET_SECONDS)
    told.send(port)
    busy = await _lookups(index, lambda: giver.given > 0)
    seconds, blocks = await asyncio.to_thread(told.recv)
    await giver.stop()
    return quiet, busy, seconds, blocks


async def _lookups(index: RunIndex, over: Callable[[], bool]) -> float:
    prompts = [Prompt(tokens=_tokens(0, prompt)) for prompt in range(PROMPTS)]
    times = []
    while not over():
        due = time.perf_counter() + PAUSE_SECONDS
        await asyncio.sleep(PAUSE_SECONDS)
        index.match(prompts[len(times) % PROMPTS])
        times.append(time.perf_counter() - due)
    return float(np.quantile(times, 0.99))


def _taker(told: Connection, public: bytes, secret: bytes) -> None:
    told.send(uvloop.run(_take(told.recv(), CurveKey(public, secret))))


async def _take(port: int, key: CurveKey) -> tuple[float, int]:
    begun = time.monotonic()
    index = RunIndex(PrefixKeys())
    images: list[RankImage] = []
    shelf = Shelf(take_secret=index.take_secret, offer=images.extend, learn=lambda _learnt: None, max_blocks=10_000_000)
    taken = await Taker(zmq.Context(), Drain(), key, shelf).take([f"tcp://127.0.0.1:{port}"])
    anchors = anchors_of(images)
    for rank, image in enumerate(images):
        for _ in fill(index, index.open(rank), image.segments, anchors):
            pass
    return time.monotonic() - begun, taken.blocks


if __name__ == "__main__":
    main(sys.argv[1:])
