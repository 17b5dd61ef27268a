"""`GET /v1/models` and `GET /v1/models/NAME`, answered here where the operator wants it.

A worker lists what it has loaded itself: it knows neither the names that are rewritten nor the adapters of others.
"""

import json
import time
from collections.abc import Callable, Collection
from urllib.parse import unquote

from epp.extproc.refusal import Refusal, unknown_model

_PATH = "/v1/models"


class ModelList:
    """The models that clients may name, in OpenAI's form."""

    def __init__(self, names: Callable[[], Collection[str]]) -> None:
        """`names` are the models that may be asked for now."""
        self._names = names
        self._created = int(time.time())

    def answer(self, method: str, path: str) -> Refusal | None:
        """What to answer in place of a worker; None for every other request."""
        path = path.partition("?")[0].rstrip("/")
        if method != "GET" or not path.startswith(_PATH):
            return None
        if path == _PATH:
            return _found({"object": "list", "data": [self._model(name) for name in self._names()]})
        if not path.startswith(f"{_PATH}/"):
            return None
        name = unquote(path.removeprefix(f"{_PATH}/"))
        if name not in self._names():
            return unknown_model(f"the model {name!r} does not exist here")
        return _found(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "epp"}


def _found(document: dict[str, object]) -> Refusal:
    return Refusal(status=200, message="", reason="models", document=json.dumps(document).encode())
