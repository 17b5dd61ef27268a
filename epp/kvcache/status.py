"""What `/status` says about KV knowledge."""

from collections.abc import Mapping
from dataclasses import dataclass, field

COUNTED = (
    *("assumed", "expired", "adopted", "messages", "bad_frames", "batches", "replayed", "lost", "repeated", "restarts"),
    *("replays", "replays_failed", "stored", "removed", "cleared", "full_queues", "passed_over", "faults"),
    *("filled", "refused"),
)
"""Fields of `RankStatus` that only grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """One followed rank; counts are since it joined the pool."""

    endpoint: str
    rank: int
    source: str
    connected: bool
    confidence: float
    """How sure we are of what it holds, 0 to 1."""
    why: str
    """What is wrong when the confidence is less than 1."""
    complete: bool
    """Whether every batch since the publisher's start or last clearing is known."""
    idle_seconds: float | None
    """Seconds since the last live message; None before the first."""
    sequence: int | None
    block_size: int
    blocks: int
    assumed: int
    """Blocks taken to be held before an event said so."""
    expired: int
    """Assumed blocks that no event named in time, or that the worker must have evicted."""
    adopted: int
    """Chains with an unknown parent that a reported prompt put in place."""
    parked: int
    waiting: int
    messages: int
    bad_frames: int
    batches: int
    replayed: int
    lost: int
    repeated: int
    restarts: int
    replays: int
    replays_failed: int
    stored: int
    removed: int
    cleared: int
    full_queues: int
    passed_over: int
    """Live batches that were left to a replay which waited for its turn."""
    faults: int
    filled: int
    """Times that it began with a peer's knowledge or a checkpoint."""
    refused: int
    """Images of it that proved to be of another process, or that nobody could prove."""
    skipped: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStatus:
    """All followed ranks and what the index takes."""

    enabled: bool
    ranks: tuple[RankStatus, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """By reason, over all ranks, those that left included."""
    gone: Mapping[str, int] = field(default_factory=dict)
    """Sums of the `COUNTED` fields over ranks that left: without them totals would go back."""
    unknown_publishers: int = 0
    """Messages from engines that connected to us, whose topic names no endpoint of the pool, or several."""
    slices: int = 0
    full_slices: int = 0
    longest_slice_seconds: float = 0.0
