"""A policy made of rules: filters, weighted scorers, a picker."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.pickers import MaxScore, RandomPick
from epp.scheduling.plugins import Filter, HearsPick, Picker, Scorer
from epp.scheduling.policy import Choice, Policy


@dataclass(frozen=True, slots=True)
class Weighted:
    """One scorer and how much it counts."""

    name: str
    scorer: Scorer
    weight: float


class ScoredPolicy:
    """The best weighted sum of scores."""

    def __init__(
        self, scorers: Sequence[Weighted], draw: random.Random, *, picker: Picker | None = None, name: str = "scorers"
    ) -> None:
        self.name = name
        self.reads_prompts = any(_reads_prompts(each.scorer) for each in scorers)
        self._scorers = tuple(scorers)
        self._picker = picker or MaxScore()
        self.reads_load = bool(scorers) or not isinstance(self._picker, RandomPick)
        self._draw = draw
        self._hearing = [each.scorer for each in scorers if isinstance(each.scorer, HearsPick)]

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """A scorer without an opinion counts for nothing."""
        total = np.zeros(len(candidates))
        for each in self._scorers:
            scores = each.scorer.score(request, candidates)
            if scores is not None:
                total += each.weight * np.clip(np.nan_to_num(scores), 0.0, 1.0)
        best = self._picker.choose(total, candidates, self._draw)
        for hearing in self._hearing:
            hearing.picked(request, candidates, best)
        return Choice(best, -total, f"best of {self.name}")


class Filtered:
    """Another policy among those that the filters keep; a filter that would leave nobody is ignored."""

    def __init__(self, filters: Sequence[Filter], policy: Policy) -> None:
        self.name = policy.name
        self.reads_prompts = policy.reads_prompts or any(map(_reads_prompts, filters))
        self.reads_load = True
        self._filters = tuple(filters)
        self._policy = policy
        self._hearing = [each for each in filters if isinstance(each, HearsPick)]

    def pick(self, request: Request, candidates: Candidates) -> Choice:
        """Choose among the kept ones; the others cost infinitely much."""
        kept = self._kept(request, candidates)
        if kept.all():
            choice = self._policy.pick(request, candidates)
        else:
            positions = kept.nonzero()[0]
            inner = self._policy.pick(request, candidates.take(positions))
            costs = np.full(len(candidates), np.inf)
            costs[positions] = inner.costs
            choice = Choice(int(positions[inner.best]), costs, inner.reason)
        for hearing in self._hearing:
            hearing.picked(request, candidates, choice.best)
        return choice

    def _kept(self, request: Request, candidates: Candidates) -> NDArray[np.bool_]:
        kept = np.ones(len(candidates), dtype=np.bool_)
        for each in self._filters:
            keeps = each.keep(request, candidates)
            if keeps is not None and (kept & keeps).any():
                kept &= keeps
        return kept


def _reads_prompts(rule: Filter | Scorer) -> bool:
    """Those that do not say so may."""
    return bool(getattr(rule, "reads_prompts", True))
