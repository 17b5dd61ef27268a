"""The load: one process, plain asyncio streams, one request after another on each of its connections."""

import argparse
import asyncio
import json
import statistics
import time


class Load:
    """`count` equal requests over `connections`; every answer must be 200 and whole."""

    def __init__(self, port: int, request: bytes, count: int) -> None:
        self._port = port
        self._request = request
        self._left = count
        self.seconds: list[float] = []

    async def run(self, connections: int) -> None:
        """Raises when any answer is wrong."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(connections):
                tasks.create_task(self._connection())

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        while self._left > 0:
            self._left -= 1
            begin = time.perf_counter()
            writer.write(self._request)
            await _answer(reader)
            self.seconds.append(time.perf_counter() - begin)
        writer.close()
        await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"not a good answer: {head!r}")
    lowered = head.lower()
    _, found, rest = lowered.partition(b"content-length:")
    if found:
        await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
    await reader.readline()


def chat_body(size: int) -> bytes:
    """A chat of about `size` bytes; a longer one begins like a shorter one."""
    text = " ".join(f"word{i % 977}" for i in range(size // 8 + 1))[: max(size - 90, 1)]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def chat_request(size: int, destination: str, path: str = "/v1/chat/completions") -> bytes:
    """The whole request; the destination is what a picker that decides nothing lets stand."""
    body = chat_body(size)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        "user-agent: bench/1\r\naccept: */*\r\nauthorization: Bearer none\r\n"
        f"x-gateway-destination-endpoint: {destination}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    """Print {"requests", "p50", "p99"}: seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--destination", required=True)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    request = chat_request(arguments.size, arguments.destination, arguments.path)
    load = Load(arguments.port, request, arguments.count)
    asyncio.run(load.run(arguments.connections))
    centiles = statistics.quantiles(load.seconds, n=100)
    print(json.dumps({"requests": len(load.seconds), "p50": centiles[49], "p99": centiles[98]}))


if __name__ == "__main__":
    main()
