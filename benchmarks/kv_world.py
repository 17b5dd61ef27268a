"""64 workers in one process that answer at once and publish KV events: what a KV-aware picker looks at.

Each worker holds the beginning of the benchmark's prompt to a depth of its own, and replays that to whoever asks.
"""

import asyncio
import json
import random
import sys
from pathlib import Path

from benchmarks.chunk_worker import skip_body
from benchmarks.load_client import chat_body
from epp.simulate.engine.cache import Namespace, Sequence, Stored
from epp.simulate.engine.events import EventEncoder, EventsConfig, Publisher
from epp.simulate.engine.tokens import ModelText

WORKERS = 64
BLOCK_SIZE = 16
ANSWER = json.dumps({"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
REPLY = (f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n{ANSWER}").encode()


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request at once."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            await skip_body(reader, head)
            writer.write(REPLY)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def stored(tokens: list[int], blocks: int) -> Stored:
    """The first `blocks` blocks of the prompt."""
    span = tokens[: blocks * BLOCK_SIZE]
    keys = Sequence(span, BLOCK_SIZE).extend_keys()
    return Stored(tuple(keys), None, span, Namespace(), first=True)


async def main(model: Path, size: int) -> None:
    """Print the entries of an endpoints file, then serve until ended."""
    text = ModelText(model)
    messages = json.loads(chat_body(size))["messages"]
    tokens = text.encode(text.render(messages, {}), add_special_tokens=False)
    depth = random.Random(1)
    entries = []
    for i in range(WORKERS):
        address = f"127.0.1.{i + 1}"
        server = await asyncio.start_server(connection, address, 0)
        events = EventsConfig(host=address, port=0, replay_port=0)
        publisher = Publisher(events, EventEncoder(events.form, BLOCK_SIZE, 0))
        publisher.start()
        publisher.publish([stored(tokens, depth.randrange(1, len(tokens) // BLOCK_SIZE))])
        ports = {"events_port": publisher.port, "replay_port": publisher.replay_port}
        port = server.sockets[0].getsockname()[1]
        entries.append({"name": f"w{i}", "address": address, "ports": [port], **ports})
    print(json.dumps({"port": 0, "entries": entries}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
