"""Takes a changed EPP_CONFIG_FILE into force without a restart."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from epp.scheduling.policies import Policies, policies_from
from epp.scheduling.sessions import Sessions
from epp.settings import Settings, SettingsError

_log = structlog.get_logger(__name__)

_SECONDS = 2.0


class ConfigWatch:
    """Looks at the file every few seconds; one that is wrong is told once and the last good one stays."""

    def __init__(
        self,
        settings: Settings,
        take: Callable[[Policies], None],
        *,
        seconds: float = _SECONDS,
        sessions: Sessions | None = None,
    ) -> None:
        self._settings = settings
        self._take = take
        self._seconds = seconds
        self._sessions = sessions
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look, if there is a file."""
        if self._settings.config_file is not None:
            seen = _state(self._settings.config_file)
            self._task = asyncio.create_task(self._run(self._settings.config_file, seen), name="config file")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, path: Path, seen: tuple[int, int, int] | None) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            state = _state(path)
            if state == seen:
                continue
            seen = state
            try:
                self._take(await asyncio.to_thread(policies_from, self._settings, self._sessions))
                _log.info("config file is in force", path=str(path))
            except SettingsError as error:
                _log.warning("config file is wrong; the last good one stays", error=str(error))


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does, also where Kubernetes swaps a link."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
