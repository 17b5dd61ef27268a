"""Why predictions of cached tokens go wrong: the likely cause by name, from what errors look like."""

from dataclasses import dataclass
from enum import StrEnum

_SMOOTHING = 0.05
_ENOUGH = 20
"""Requests before a worker is judged."""
_LARGE = 0.2
"""Share of wrong predictions from which on there is something to name."""
_MOST = 0.5
_WINDOW = 50
"""Requests over which restarts and removals are counted."""


class Cause(StrEnum):
    """What most likely makes predictions wrong."""

    BLOCK_SIZE = "wrong_block_size"
    TOKENIZER = "other_tokenizer"
    TEMPLATE = "other_template"
    NO_EVENTS = "no_events"
    MISSED = "missed_events"
    SALT = "salt"
    RESTART = "restart"
    EVICTIONS = "eviction_storm"
    UNKNOWN = "unknown"


ADVICE = {
    Cause.BLOCK_SIZE: "set EPP_BLOCK_SIZE (or the endpoint's block size) to that of the engine",
    Cause.TOKENIZER: "prompts have other lengths there: EPP_TOKENIZER is not the model's tokenizer",
    Cause.TEMPLATE: "prompts begin with other tokens there: its chat template differs from ours",
    Cause.NO_EVENTS: "no KV events come from there: check the engine's publisher and the events port",
    Cause.MISSED: "events are missing: give the engine a replay endpoint",
    Cause.SALT: "its events do not name cache salts: prompts with a salt look like plain ones",
    Cause.RESTART: "the engine restarts",
    Cause.EVICTIONS: "its cache turns over between pick and prefill: it is too small for the load",
    Cause.UNKNOWN: "compare its prompts with ours by `epp tokens --compare`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What else is known of a worker's cache; counts are since it joined."""

    events: bool = False
    """Whether a publisher is connected."""
    complete: bool = False
    block_size: int = 0
    """As it is reckoned with."""
    event_block_size: int = 0
    """As events say; 0 if they do not."""
    blocks: int = 0
    removed: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One request whose engine reported cached tokens."""

    predicted: int
    reported: int
    tokens: int
    """Of the prompt, as we count."""
    engine_tokens: int | None
    """Of the prompt, as the engine counts."""
    salted: bool


class Errors:
    """The running errors of one worker; shares are of requests, the newest weighing most."""

    def __init__(self) -> None:
        self.compared = 0
        self.mean = 0.0
        """Predicted minus reported tokens."""
        self.over = 0.0
        self.under = 0.0
        self._salted = 0.0
        """Of those that were over."""
        self._unaligned = 0.0
        self._other_length = 0.0
        self._same_difference = 0.0
        self._difference: int | None = None
        self._before = self._since = Evidence()

    def add(self, one: Comparison, evidence: Evidence) -> None:
        """Take in one request."""
        if self.compared % _WINDOW == 0:
            self._before = self._since if self.compared else evidence
            self._since = evidence
        self.compared += 1
        error = one.predicted - one.reported
        self.mean = self._smooth(self.mean, error)
        self.over = self._smooth(self.over, error > 0)
        self.under = self._smooth(self.under, error < 0)
        if error > 0:
            self._salted = self._smooth(self._salted, one.salted)
        if one.reported and evidence.block_size:
            self._unaligned = self._smooth(self._unaligned, one.reported % evidence.block_size != 0)
        if one.engine_tokens is not None:
            difference = one.engine_tokens - one.tokens
            self._other_length = self._smooth(self._other_length, difference != 0)
            self._same_difference = self._smooth(self._same_difference, difference == self._difference)
            self._difference = difference

    def cause(self, evidence: Evidence) -> Cause | None:
        """The likely cause; None while predictions are right often enough."""
        if self.compared < _ENOUGH or self.over + self.under < _LARGE:
            return None
        if not evidence.events:
            return Cause.NO_EVENTS
        if self._unaligned > _MOST or evidence.event_block_size not in (0, evidence.block_size):
            return Cause.BLOCK_SIZE
        if self._other_length > _MOST:
            return Cause.TEMPLATE if self._same_difference > _MOST else Cause.TOKENIZER
        return self._over_cause(evidence) if self.over > self.under else self._under_cause(evidence)

    def _over_cause(self, evidence: Evidence) -> Cause:
        if evidence.restarts > self._before.restarts:
            return Cause.RESTART
        if self._salted > _MOST:
            return Cause.SALT
        if evidence.removed - self._before.removed > evidence.blocks:
            return Cause.EVICTIONS
        return Cause.UNKNOWN

    @staticmethod
    def _under_cause(evidence: Evidence) -> Cause:
        return Cause.TEMPLATE if evidence.complete else Cause.MISSED

    def _smooth(self, before: float, value: float) -> float:
        weight = max(_SMOOTHING, 1 / self.compared)
        return before + weight * (value - before)
