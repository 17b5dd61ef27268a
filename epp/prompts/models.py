"""The models that requests may name, each with its way to token ids, and the adapters over them."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from epp.prompts.model import Model
from epp.prompts.model_files import ModelFilesError
from epp.prompts.model_source import ModelSourceError

_MOST_ADAPTERS = 4096
_ABSENT_SECONDS = 2.0
"""Between two looks for a model that is not there yet."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """One model, loaded again when its files change."""

    names: frozenset[str]
    """Names in requests; empty: every name that no other model has."""
    origin: str
    """Where its files come from."""
    stamp: Callable[[], object]
    """What changes with the files. Raises ModelSourceError."""
    load: Callable[[], Model]
    """Raises ModelFilesError, ModelSourceError."""
    model: Model | None = None
    """None: there is none yet, or none that can be used here."""
    problem: str = ""
    """Why the model could not be loaded, or loaded again; it goes on as it was."""
    _stamp: object = None
    _fault: str = ""

    def look(self) -> None:
        """Load the model if its files changed; blocks. Raises ModelSourceError, ModelFilesError."""
        stamp = self.stamp()
        if stamp != self._stamp:
            self._stamp, self._fault = stamp, ""
            try:
                self.model = self.load()
            except (ModelSourceError, ModelFilesError) as error:
                self._fault = str(error)
                raise
        if self._fault:
            raise ModelSourceError(self._fault)

    async def refresh(self) -> None:
        """Load the model again if its files changed; what is wrong is said once."""
        before = self.model
        try:
            await asyncio.to_thread(self.look)
        except (ModelSourceError, ModelFilesError) as error:
            if str(error) != self.problem:
                stays = "the earlier ones stay" if before is not None else "there are none yet"
                _log.error("tokenizer files cannot be used", problem=str(error), then=stays)
            self.problem = str(error)
            return
        self.problem = ""
        if self.model is not before:
            _log.info("tokenizer files loaded", origin=self.origin)


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
        self._watching: list[asyncio.Task[None]] = []

    def find(self, name: str) -> Model | None:
        """The model for the name in a request; None: no model here has it."""
        one = self._by_name.get(name, self._any)
        return None if one is None else one.model

    def adapter(self, name: str) -> str:
        """`name` if it is a LoRA adapter, whose KV blocks are its own; else the empty string."""
        return name if name in self._adapters else ""

    def learn_adapter(self, name: str) -> None:
        """An engine says that `name` is an adapter."""
        if len(self._adapters) < _MOST_ADAPTERS:
            self._adapters.add(name)

    def watch(self) -> None:
        """Look at the files from now on."""
        self._watching = [asyncio.create_task(self._watch(one), name=f"files of {one.origin}") for one in self.served]

    def close(self) -> None:
        """Stop looking at files."""
        for task in self._watching:
            task.cancel()

    async def _watch(self, one: ServedModel) -> None:
        while True:
            seconds = self._check_seconds
            if one.model is None:
                seconds = min(seconds or _ABSENT_SECONDS, _ABSENT_SECONDS)
            if not seconds:
                return
            await asyncio.sleep(seconds)
            try:
                await one.refresh()
            except Exception:  # noqa: BLE001 - an odd file must not end all further looks
                _log.exception("looking at tokenizer files failed", origin=one.origin)
