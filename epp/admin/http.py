"""A small HTTP listener: start it, ask its port, stop it."""

from pathlib import Path

from aiohttp import web


class HttpListener:
    """Serves one aiohttp application on one address."""

    def __init__(self, application: web.Application, *, host: str, port: int, path: Path | None = None) -> None:
        """`path`: a local socket in place of host and port."""
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._host = host
        self._port = port
        self._path = path

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for."""
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses and self._path is None else self._port

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        await self._runner.setup()
        try:
            await self._site().start()
        except OSError:
            await self._runner.cleanup()
            raise

    def _site(self) -> web.BaseSite:
        if self._path is None:
            return web.TCPSite(self._runner, self._host, self._port)
        self._path.unlink(missing_ok=True)
        return web.UnixSite(self._runner, str(self._path))

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self._runner.cleanup()
