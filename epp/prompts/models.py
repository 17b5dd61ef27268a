"""The models that requests may name, each with its way to token ids, and the adapters over them."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from epp.prompts.model import Model
from epp.prompts.model_files import ModelFilesError

_MOST_ADAPTERS = 4096

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """One model, loaded again when its files change."""

    names: frozenset[str]
    """Names in requests; empty: every name that no other model has."""
    load: Callable[[], Model]
    files: Callable[[], Iterable[Path]]
    """The files whose change matters."""
    model: Model
    problem: str = ""
    """Why the changed files could not be loaded; the model goes on as it was."""
    _stamp: tuple[tuple[str, int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        self._stamp = _stamp(self.files())

    async def refresh(self) -> None:
        """Load the model again if a file changed."""
        stamp = await asyncio.to_thread(_stamp, self.files())
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.model = await asyncio.to_thread(self.load)
        except ModelFilesError as error:
            self.problem = str(error)
            _log.error("changed tokenizer files cannot be used; the earlier ones stay", problem=self.problem)
        else:
            self.problem = ""
            _log.info("tokenizer files changed: loaded again", origin=self.model.origin)


class Models:
    """Finds the model and the adapter that a request names."""

    def __init__(
        self, served: Iterable[ServedModel], adapters: Iterable[str] = (), *, check_seconds: float = 30
    ) -> None:
        self.served = tuple(served)
        self._by_name = {name: one for one in self.served for name in one.names}
        self._any = next((one for one in self.served if not one.names), None)
        self._adapters = set(adapters)
        self._check_seconds = check_seconds
        self._checked = time.monotonic()
        self._checking: asyncio.Task[None] | None = None

    def find(self, name: str) -> Model | None:
        """The model for the name in a request; None: no model here has it."""
        self._check_files()
        one = self._by_name.get(name, self._any)
        return None if one is None else one.model

    def adapter(self, name: str) -> str:
        """`name` if it is a LoRA adapter, whose KV blocks are its own; else the empty string."""
        return name if name in self._adapters else ""

    def learn_adapter(self, name: str) -> None:
        """An engine says that `name` is an adapter."""
        if len(self._adapters) < _MOST_ADAPTERS:
            self._adapters.add(name)

    def close(self) -> None:
        """Stop looking at files."""
        if self._checking is not None:
            self._checking.cancel()

    def _check_files(self) -> None:
        now = time.monotonic()
        if self._check_seconds and now - self._checked >= self._check_seconds and self.served:
            self._checked = now
            self._checking = asyncio.ensure_future(self._refresh())

    async def _refresh(self) -> None:
        for one in self.served:
            await one.refresh()


def _stamp(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    stamps = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        stamps.append((str(path), found.st_mtime_ns, found.st_size))
    return tuple(stamps)
