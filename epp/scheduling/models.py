"""Which model serves a request, and whether it is one that is served here at all."""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate

from epp.prompts.prompt import Request
from epp.settings import Settings, SettingsError, UnknownModel

Rewrite = Callable[[str, float], str | None]
"""The model that serves requests for another, by a random number in [0, 1); None: itself."""


class UnknownModelError(Exception):
    """The model is not served here; the text is safe to show to the client."""


@dataclass(frozen=True, slots=True)
class WeightedTargets:
    """Models that serve requests for one name, with the share of each."""

    models: tuple[str, ...]
    weights: tuple[float, ...]

    def draw(self, number: float) -> str:
        """The model for a random number in [0, 1)."""
        sums = list(accumulate(self.weights))
        return next(name for name, sum_ in zip(self.models, sums, strict=True) if number * sums[-1] < sum_)


class Models:
    """The operator's rewrites and list of models, and the adapters that the engines name themselves."""

    def __init__(
        self,
        settings: Settings,
        rewrite: Rewrite,
        adapters: Callable[[], Collection[str]] = frozenset,
        draw: random.Random | None = None,
    ) -> None:
        """`rewrite` comes before EPP_MODEL_REWRITES. Raises SettingsError for settings that contradict each other."""
        self._served = frozenset(name.strip() for name in (settings.models or "").split(",") if name.strip())
        self._refuse = settings.unknown_model is UnknownModel.REFUSE
        if self._refuse and not self._served:
            raise SettingsError("EPP_UNKNOWN_MODEL=refuse: needs EPP_MODELS, the names of the models that are served")
        if settings.answer_models and not self._served:
            raise SettingsError("EPP_ANSWER_MODELS=true: needs EPP_MODELS, the names of the models that are served")
        self._rewrites = parse_rewrites(settings.model_rewrites or "")
        self._rewrite = rewrite
        self._adapters = adapters
        self._draw = draw or random.Random()  # noqa: S311 - shares of traffic

    def serving(self, model: str) -> str:
        """The model that shall serve a request for `model`: drawn once for each request, before its tokens are known,
        since tokenizer and KV namespace are those of the model that serves."""
        if not model:
            return ""
        number = self._draw.random()
        target = self._rewrite(model, number)
        if target is None and (targets := self._rewrites.get(model)) is not None:
            target = targets.draw(number)
        return target or model

    def rewritten(self, request: Request) -> str | None:
        """The model to put into the request in place of the one that it names; None: leave it.

        Raises UnknownModelError for one that is not served, where such are refused.
        """
        serving = request.served_model
        if self._refuse and serving and serving not in self._served and serving not in self._adapters():
            raise UnknownModelError(f"the model {request.model!r} does not exist here")
        return serving if serving != request.model else None

    def names(self) -> list[str]:
        """What clients may ask for: listed models, names that are rewritten, adapters that engines have."""
        return sorted({*self._served, *self._rewrites, *self._adapters()})


def parse_rewrites(text: str) -> Mapping[str, WeightedTargets]:
    """`name=model:weight|model:weight,name=model`; a weight that is not named is 1.

    A model's own colons are part of its name, unless a number follows the last. Raises SettingsError.
    """
    return dict(_rule(part.strip()) for part in text.split(",") if part.strip())


def _rule(text: str) -> tuple[str, WeightedTargets]:
    name, equals, targets = text.partition("=")
    parsed = [_target(target.strip()) for target in targets.split("|")]
    if not equals or not name.strip() or not all(model and weight > 0 for model, weight in parsed):
        raise SettingsError(
            f"EPP_MODEL_REWRITES: {text!r}: expected name=model:weight|model:weight with weights above 0"
        )
    models, weights = zip(*parsed, strict=True)
    return name.strip(), WeightedTargets(models, weights)


def _target(text: str) -> tuple[str, float]:
    model, colon, weight = text.rpartition(":")
    if colon and weight.replace(".", "", 1).isdecimal():
        return model.strip(), float(weight)
    return text, 1.0
