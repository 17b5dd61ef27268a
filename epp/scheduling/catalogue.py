"""Filters, scorers and pickers by name: ours, and those that installed packages offer as entry points."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar, cast

from epp.scheduling import affinity, pickers, scorers
from epp.scheduling.plugins import Filter, Picker, Scorer

FILTERS: Mapping[str, Callable[..., Filter]] = {
    "context-length": affinity.ContextLength,
    "label-selector": affinity.LabelSelector,
    "session": affinity.Session,
}
SCORERS: Mapping[str, Callable[..., Scorer]] = {
    "context-length": affinity.ContextLength,
    "kv": scorers.KvUse,
    "label-selector": affinity.LabelSelector,
    "least-in-flight": scorers.LeastInFlight,
    "least-tokens": scorers.LeastTokens,
    "lora": affinity.LoraAffinity,
    "predicted-prefix": scorers.PredictedPrefix,
    "predicted-ttft": scorers.PredictedTime,
    "prefix": scorers.Prefix,
    "queue": scorers.Queue,
    "random": scorers.Random,
    "running": scorers.Running,
    "session": affinity.Session,
    "slo": scorers.SloHeadroom,
    "topology": affinity.Topology,
}
PICKERS: Mapping[str, Callable[..., Picker]] = {
    "max-score": pickers.MaxScore,
    "random": pickers.RandomPick,
    "softmax": pickers.Softmax,
    "weighted-random": pickers.WeightedRandom,
}

Rule = TypeVar("Rule", covariant=True)


class RuleError(ValueError):
    """A rule is not known or its parameters do not fit; the text says which and what was expected."""


class _Make(Protocol[Rule]):
    def __call__(self, **parameters: Any) -> Rule: ...


def make_filter(name: str, parameters: Mapping[str, Any] | None = None) -> Filter:
    """The filter of that name. Raises RuleError."""
    return _make("filter", name, parameters or {}, FILTERS, "keep")


def make_scorer(name: str, parameters: Mapping[str, Any] | None = None) -> Scorer:
    """The scorer of that name. Raises RuleError."""
    return _make("scorer", name, parameters or {}, SCORERS, "score")


def make_picker(name: str, parameters: Mapping[str, Any] | None = None) -> Picker:
    """The picker of that name. Raises RuleError."""
    return _make("picker", name, parameters or {}, PICKERS, "choose")


def _make(
    kind: str, name: str, parameters: Mapping[str, Any], ours: Mapping[str, Callable[..., Rule]], method: str
) -> Rule:
    make = ours[name] if name in ours else _installed(kind, name, ours)
    try:
        inspect.signature(make).bind(**parameters)
        rule = make(**parameters)
    except (TypeError, ValueError) as error:
        raise RuleError(f"{kind} {name!r}: {error}") from None
    if not callable(getattr(rule, method, None)):
        raise RuleError(f"{kind} {name!r}: has no method {method}()")
    return rule


def _installed(kind: str, name: str, ours: Iterable[str]) -> _Make[Rule]:
    found = {each.name: each for each in entry_points(group=f"epp.{kind}s")}
    if name in found:
        try:
            return cast("_Make[Rule]", found[name].load())
        except Exception as error:  # noqa: BLE001 - code of others: whatever it raises is told to the operator
            raise RuleError(f"{kind} {name!r}: cannot be loaded from {found[name].value}: {error}") from None
    known = sorted({*ours, *found})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise RuleError(f"{kind} {name!r}: expected one of {', '.join(known)}{hint}")
