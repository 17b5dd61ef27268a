"""A worker that streams chunks, each in a segment of its own: the path is their number, and their distance in ms.

`/20` streams 20 chunks as fast as they stay apart, `/100/20` a hundred of them every 20 ms.
"""

import asyncio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1796064223,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
PAUSE_SECONDS = 0.003


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until the other side closes it."""
    piece = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            await skip_body(reader, head)
            chunks, _, distance = head.split(b" ", 2)[1].removeprefix(b"/").partition(b"/")
            pause = int(distance) / 1000 if distance else PAUSE_SECONDS
            writer.write(HEAD)
            for _ in range(int(chunks)):
                writer.write(piece)
                await asyncio.sleep(pause)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def skip_body(reader: asyncio.StreamReader, head: bytes) -> None:
    """Read the body that follows `head`."""
    lowered = head.lower()
    if b"transfer-encoding: chunked" not in lowered:
        length = lowered.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        await reader.readexactly(int(length or 0))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
    await reader.readline()


async def main() -> None:
    """Serve until ended; prints the port."""
    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(f'{{"port": {server.sockets[0].getsockname()[1]}}}', flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
