"""Priorities and model rewrites of a pool, from InferenceObjective and InferenceModelRewrite objects; no I/O.

Both kinds exist in the group `llm-d.ai` and, older, in `inference.networking.x-k8s.io`, with the same spec.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from epp.endpoints.kubernetes.objects import Meta, Struct

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""Newest first: an object of the newer group goes before one of the same name in the older."""
VERSION = "v1alpha2"


class PoolRef(Struct, frozen=True):
    name: str


class ObjectiveSpec(Struct, frozen=True):
    pool_ref: PoolRef
    priority: int | None = None


class Objective(Struct, frozen=True):
    """How urgent the requests are that name it in a header."""

    metadata: Meta
    spec: ObjectiveSpec


class ModelMatch(Struct, frozen=True):
    value: str


class Match(Struct, frozen=True):
    model: ModelMatch


class Target(Struct, frozen=True):
    model_rewrite: str
    weight: int | None = None


class Rule(Struct, frozen=True):
    targets: tuple[Target, ...]
    matches: tuple[Match, ...] | None = None


class RewriteSpec(Struct, frozen=True):
    pool_ref: PoolRef
    rules: tuple[Rule, ...] = ()


class ModelRewrite(Struct, frozen=True):
    """Which model serves requests for another."""

    metadata: Meta
    spec: RewriteSpec


def priorities(pool: str, objectives: Iterable[Objective]) -> dict[str, int]:
    """Priority by name of objective; none given means 0, and below 0 may be shed."""
    found: dict[str, int] = {}
    for objective in objectives:
        if objective.spec.pool_ref.name == pool:
            found.setdefault(objective.metadata.name, objective.spec.priority or 0)
    return found


@dataclass(frozen=True, slots=True)
class Split:
    """Target models with the share of requests that each gets."""

    targets: tuple[Target, ...]

    def draw(self, number: float) -> str:
        """The target for a random number in [0, 1). A target without weight has weight 1."""
        weights = [target.weight or 1 for target in self.targets]
        left = number * sum(weights)
        for target, weight in zip(self.targets, weights, strict=True):
            left -= weight
            if left < 0:
                return target.model_rewrite
        return self.targets[-1].model_rewrite


class Rewrites:
    """The rule for each model: exact before any model, then the oldest object, then its first rule."""

    def __init__(self, pool: str = "", objects: Iterable[ModelRewrite] = ()) -> None:
        self._exact: dict[str, Split] = {}
        self._any: Split | None = None
        mine = [rewrite for rewrite in objects if rewrite.spec.pool_ref.name == pool]
        for rewrite in sorted(mine, key=_age):
            for rule in rewrite.spec.rules:
                self._add(rule)

    def target(self, model: str, number: float) -> str | None:
        """The model that serves a request for `model`, by a random number in [0, 1); None: `model` itself."""
        split = self._exact.get(model, self._any)
        return None if split is None else split.draw(number)

    def __len__(self) -> int:
        return len(self._exact) + (self._any is not None)

    def _add(self, rule: Rule) -> None:
        if not rule.targets:
            return
        split = Split(rule.targets)
        for match in rule.matches or ():
            self._exact.setdefault(match.model.value, split)
        if not rule.matches and self._any is None:
            self._any = split


def _age(rewrite: ModelRewrite) -> tuple[str, str]:
    return (rewrite.metadata.creation_timestamp or "", rewrite.metadata.name)
