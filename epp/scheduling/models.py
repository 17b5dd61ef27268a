"""Which model serves a request, and whether it is one that is served here at all."""

import random
from collections.abc import Callable, Collection

from epp.settings import Settings, SettingsError, UnknownModel

Rewrite = Callable[[str, float], str | None]
"""The model that serves requests for another, by a random number in [0, 1); None: itself."""


class UnknownModelError(Exception):
    """The model is not served here; the text is safe to show to the client."""


class Models:
    """The operator's rewrites and list of models, and the adapters that the engines name themselves."""

    def __init__(
        self,
        settings: Settings,
        rewrite: Rewrite,
        adapters: Callable[[], Collection[str]] = frozenset,
        draw: random.Random | None = None,
    ) -> None:
        """Raises SettingsError for settings that contradict each other."""
        self._served = frozenset(name.strip() for name in (settings.models or "").split(",") if name.strip())
        self._refuse = settings.unknown_model is UnknownModel.REFUSE
        if self._refuse and not self._served:
            raise SettingsError("EPP_UNKNOWN_MODEL=refuse: needs EPP_MODELS, the names of the models that are served")
        self._rewrite = rewrite
        self._adapters = adapters
        self._draw = draw or random.Random()  # noqa: S311 - shares of traffic

    def target(self, model: str) -> str | None:
        """The model to put into the request in place of `model`; None: leave it.

        Raises UnknownModelError for one that is not served, where such are refused.
        """
        target = self._rewrite(model, self._draw.random()) if model else None
        serving = target or model
        if self._refuse and serving and serving not in self._served and serving not in self._adapters():
            raise UnknownModelError(f"the model {model!r} does not exist here")
        return target if target != model else None
