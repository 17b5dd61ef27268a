"""Engines that only publish: `python -m benchmarks.kv_publishers WORKERS BLOCKS_PER_SECOND EVENT_BLOCKS`.

Prints its ports, waits for a line on stdin, then publishes so many blocks a second, over all workers in turn, until
stdin ends. Each worker's cache is cleared whenever it holds `CHAINS` conversations.
"""

import itertools
import json
import select
import sys
import time

import msgspec
import zmq

from benchmarks.kv_index import batches

CHAINS = 32
_DIFFERENT = 8
"""Workers with contents of their own; others repeat them."""
_TICK_SECONDS = 0.002


def main(workers: int, blocks_per_second: float, event_blocks: int) -> None:
    """Publish until stdin ends."""
    context = zmq.Context()
    sockets = [context.socket(zmq.PUB) for _ in range(workers)]
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    cleared = msgspec.msgpack.encode([0.5, [{"type": "AllBlocksCleared"}], 0])
    contents = [[*batches(CHAINS, event_blocks, seed), cleared] for seed in range(_DIFFERENT)]
    turns = [itertools.cycle(contents[i % _DIFFERENT]) for i in range(workers)]
    print(json.dumps({"port": 0, "ports": ports}), flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    for sent in itertools.count():
        worker = sent % workers
        number = (sent // workers).to_bytes(8, "big")
        sockets[worker].send_multipart([b"", number, next(turns[worker])])
        ahead = start + sent * event_blocks / blocks_per_second - time.monotonic()
        if ahead > _TICK_SECONDS:
            if select.select([sys.stdin], [], [], 0)[0]:
                return
            time.sleep(ahead)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
