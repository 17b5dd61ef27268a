"""The index in a file, so that a restarted picker need not begin blind.

The file holds the secret of the prefix keys (32 bytes) and a snapshot. It is only ever replaced as a whole. What it
says of a rank is used where the rank's publisher proves by its replay that it is still the same process.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from epp.kvcache.image import RankImage
from epp.kvcache.keys import secret_id
from epp.kvcache.knowledge import KvKnowledge
from epp.kvcache.snapshot import Decoder, SnapshotError
from epp.settings import Settings

_log = structlog.get_logger()

_NAME = "kv-index.snapshot"
_SECRET_BYTES = 32
_READ_AT_ONCE = 1 << 18
_SHARE = 0.1
"""Of a core: what writing may take from the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """The file of `EPP_CHECKPOINT_DIR`."""

    path: str
    written: int = 0
    """Times since the start."""
    failed: int = 0
    age_seconds: float | None = None
    """Since the last time; None before it."""
    bytes: int = 0
    """Size of the file that was written last."""
    ranks_found: int = 0
    """Ranks of which the file that was there at the start told."""
    problem: str = ""
    """Why the file that was there at the start, or the last writing, was of no use."""


class Checkpoint:
    """Reads the file once before anything is known, and writes it from time to time and at the end."""

    def __init__(self, knowledge: KvKnowledge, directory: Path, *, interval_seconds: float, max_blocks: int) -> None:
        self._knowledge = knowledge
        self._path = directory / _NAME
        self._interval = interval_seconds
        self._max_blocks = max_blocks
        self._task: asyncio.Task[None] | None = None
        self._written = self._failed = self._size = self._found = 0
        self._written_at: float | None = None
        self._problem = ""

    async def start(self) -> None:
        """Offer what the file holds; a file that cannot be used costs a warning."""
        try:
            secret, images = await asyncio.to_thread(read, self._path, self._max_blocks)
        except FileNotFoundError:
            _log.info("no checkpoint of the KV index yet", path=str(self._path))
        except (OSError, SnapshotError) as error:
            self._problem = str(error)
            _log.warning("the checkpoint of the KV index cannot be used", path=str(self._path), reason=str(error))
        else:
            if self._knowledge.take_secret(secret):
                self._found = len(images)
                self._knowledge.offer(images)
                _log.info("found a checkpoint of the KV index", path=str(self._path), ranks=len(images))
        self._task = asyncio.create_task(self._write_from_time_to_time(), name="KV checkpoint")

    async def stop(self) -> None:
        """Write once more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.write(hurry=True)

    def status(self) -> CheckpointStatus:
        """The section of `/status`."""
        return CheckpointStatus(
            path=str(self._path),
            written=self._written,
            failed=self._failed,
            age_seconds=None if self._written_at is None else time.monotonic() - self._written_at,
            bytes=self._size,
            ranks_found=self._found,
            problem=self._problem,
        )

    async def write(self, *, hurry: bool = False) -> None:
        """Replace the file by what is known now; the old one stays when that fails."""
        new = self._path.with_name(f"{_NAME}.{os.getpid()}")
        try:
            self._size = await self._write_to(new, hurry=hurry)
            await asyncio.to_thread(os.replace, new, self._path)
        except OSError as error:
            self._failed += 1
            if self._problem != str(error):
                self._problem = str(error)
                _log.warning("the KV index could not be written", path=str(self._path), reason=str(error))
            with suppress(OSError):
                new.unlink()
            return
        self._written += 1
        self._written_at = time.monotonic()
        self._problem = ""

    async def _write_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.write()

    async def _write_to(self, path: Path, *, hurry: bool) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        size = 0
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            size += file.write(self._knowledge.index.secret)
            chunks = self._knowledge.snapshot()
            while (step := _next(chunks)) is not None:
                chunk, seconds = step
                if chunk:
                    size += await asyncio.to_thread(file.write, chunk)
                await asyncio.sleep(0 if hurry else seconds / _SHARE)
            await asyncio.to_thread(os.fsync, file.fileno())
        return size


def checkpoint_from(settings: Settings, knowledge: KvKnowledge) -> Checkpoint | None:
    """The checkpoint that the settings ask for, if any."""
    if settings.checkpoint_dir is None:
        return None
    return Checkpoint(
        knowledge,
        settings.checkpoint_dir,
        interval_seconds=settings.checkpoint_seconds,
        max_blocks=settings.kv_index_max_blocks,
    )


def _next(chunks: Iterator[bytes]) -> tuple[bytes, float] | None:
    started = time.perf_counter()
    chunk = next(chunks, None)
    return None if chunk is None else (chunk, time.perf_counter() - started)


def read(path: Path, max_blocks: int) -> tuple[bytes, list[RankImage]]:
    """The secret and the images in a file. Raises OSError, and SnapshotError for anything but a whole checkpoint."""
    with path.open("rb") as file:
        secret = file.read(_SECRET_BYTES)
        decoder = Decoder(secret_id(secret), max_blocks)
        images: list[RankImage] = []
        while data := file.read(_READ_AT_ONCE):
            images.extend(image for image in decoder.feed(data) if image is not None)
    if not decoder.finished:
        raise SnapshotError("it ends too early")
    return secret, images
