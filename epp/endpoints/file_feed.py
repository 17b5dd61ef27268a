"""The endpoints file, read again when it changes."""

import asyncio
from pathlib import Path

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.feed import Changed
from epp.endpoints.file import read_endpoints
from epp.endpoints.source import Source, SourceMetrics
from epp.settings import SettingsError

_Stamp = tuple[int, int, int]


class FileFeed:
    """A file that becomes wrong or vanishes keeps the last good state and says so.

    Raises SettingsError when the file is wrong from the beginning.
    """

    def __init__(
        self, path: Path, *, look_seconds: float, changed: Changed, metrics: SourceMetrics | None = None
    ) -> None:
        self._path = path
        self._look_seconds = look_seconds
        self._source = Source(f"file {path}", metrics)
        self._changed = changed
        self._stamp = _stamp(path)
        self._endpoints = read_endpoints(path)
        self._source.seen(objects=len(self._endpoints))
        self.sources = (self._source,)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of the last good file."""
        return self._endpoints

    def at(self, place: Place) -> Endpoint | None:
        """The one of them at `place`."""
        return next((endpoint for endpoint in self._endpoints if endpoint.place == place), None)

    def problem(self) -> str:
        """A file that is wrong now shows as a failing source; its last good state serves."""
        return ""

    async def run(self) -> None:
        """Look for changes until cancelled."""
        if not self._look_seconds:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(self._look_seconds)
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            self._endpoints = await asyncio.to_thread(read_endpoints, self._path)
        except SettingsError as error:
            self._source.failed(str(error))
        else:
            self._source.seen(objects=len(self._endpoints))
            self._changed()


def _stamp(path: Path) -> _Stamp | None:
    """Changes whenever the file may have, also when a link to it moves, as in a mounted ConfigMap."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
