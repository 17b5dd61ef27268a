"""A TCP relay before the API server, for faults of the network between."""

import asyncio
from contextlib import suppress


class Relay:
    """Passes bytes both ways until it is told to hold them or to cut all connections; TLS goes through unread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay = 0.0
        self.connections = 0

    async def start(self) -> int:
        """Listen on a free port and return it."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._flowing.set()
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def hold(self) -> None:
        """From now on no byte passes, and nobody is told: a half-open connection."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            back, out = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers |= {writer, out}
            self.connections += 1
            try:
                await asyncio.gather(self._pipe(reader, out), self._pipe(back, writer))
            finally:
                self._writers -= {writer, out}
                out.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # asyncio logs a cancelled handler as a fault
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
