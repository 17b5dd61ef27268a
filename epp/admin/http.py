"""A small HTTP listener: start it, ask its port, stop it."""

from aiohttp import web


class HttpListener:
    """Serves one aiohttp application on one address."""

    def __init__(self, application: web.Application, *, host: str, port: int) -> None:
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._host = host
        self._port = port

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for."""
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses else self._port

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError:
            await self._runner.cleanup()
            raise

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self._runner.cleanup()
