"""One endpoint whose cache is followed: its rank, its stream where it has one, and how sure we are."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineSample
from epp.kvcache.causes import Evidence
from epp.kvcache.events import Skip
from epp.kvcache.image import Anchors, ImageIndex, RankImage, fill
from epp.kvcache.rank import Rank
from epp.kvcache.sequence import Offer, SequenceCounts
from epp.kvcache.sources import DYNAMO
from epp.kvcache.status import RankStatus
from epp.kvcache.stream import Stream, StreamCounts
from epp.prompts.prompt import Prompt

_LONGEST_MEND_PAUSE_SECONDS = 1800.0
_UNHEALED = 0.9
"""Confidence of a rank of which we missed something never grows beyond this."""


@dataclass(slots=True)
class Followed:
    """A rank without a stream is known by our own picks alone."""

    endpoint: Endpoint
    number: int
    """Of the data-parallel rank."""
    rank: Rank
    stream: Stream | None
    worker_blocks: int
    source: str = ""
    detach: Callable[[], None] | None = None
    """Ends the giving of messages to its stream, where they come by a socket of others."""
    expected_block_size: int = 0
    mend_at: float = 0.0
    mends: int = 0
    """Tries so far: live events wait during each, so they become rare where nobody answers."""
    closed: bool = False
    filled_blocks: int = 0
    """Blocks that came with an image."""

    def tick(self, now: float, mend_seconds: float, sample: EngineSample | None) -> bool:
        """What is due: assumptions that end, holes that may be mended, what the engine's metrics say of its cache.

        Returns whether more is due.
        """
        if self.closed:
            return False
        if sample is not None:
            self.rank.learn_shape(sample.block_size, sample.blocks)
        if self.stream is not None and now >= self.mend_at and (self.mend_at == 0 or self.stream.sequence.mend()):
            self.mend_at = now + min(mend_seconds * 2**self.mends, _LONGEST_MEND_PAUSE_SECONDS)
            self.mends += 1
        text_due = self.rank.as_text.expire(now)
        return self.rank.assumed.expire(now) or text_due

    def takes_other_block_size(self) -> bool:
        """Whether its events have another block size than was expected; each is told once."""
        said = self.rank.decoder.block_size
        if not said or said == self.expected_block_size:
            return False
        self.expected_block_size = said
        return True

    def evidence(self) -> Evidence:
        """What tells why predictions go wrong, if they do."""
        stream = self.stream
        return Evidence(
            events=stream is not None and stream.connected,
            complete=self.complete,
            block_size=self.rank.block_size,
            event_block_size=self.rank.decoder.block_size,
            blocks=self.rank.blocks,
            removed=self.rank.counts.removed,
            restarts=stream.sequence.counts.restarts if stream is not None else 0,
        )

    @property
    def complete(self) -> bool:
        """Whether every event since the engine's start or last clearing is known."""
        stream = self.stream
        return stream is not None and stream.sequence.complete and not self.rank.counts.skipped[Skip.MISSED]

    def picked(self, prompt: Prompt, now: float) -> None:
        """`prompt` is on its way there."""
        if not prompt.has_ids:
            self.rank.as_text.keep(prompt, len(prompt.tokens), self.rank.block_size, now)
        elif self.stream is None:
            self.rank.assumed.keep(prompt, len(prompt.tokens), self.rank.block_size, now)
        else:
            self.rank.assumed.expect(prompt, self.rank.block_size, now)

    def reported(self, prompt: Prompt, cached_tokens: int, now: float) -> None:
        """The engine said how much of `prompt` it had in its cache, and has all of it now."""
        if self.stream is None:
            self.rank.assumed.keep(prompt, len(prompt.tokens), self.rank.block_size, now)
        elif not self.complete:
            self.rank.reported(prompt, cached_tokens, now)

    def reported_by_some_rank(self, prompt: Prompt, cached_tokens: int, now: float) -> None:
        """As `reported`, by this rank or by another one behind the endpoint."""
        if self.stream is not None and not self.complete:
            self.rank.heard(prompt, cached_tokens, now)

    def image(self) -> RankImage | None:
        """What would be in an image of it now, its blocks apart; None while a batch is half in the index."""
        stream = self.stream
        if stream is None or stream.indexed is None or not stream.settled or self.endpoint.engine == DYNAMO:
            return None
        digests = stream.sequence.digests(stream.indexed)
        if stream.indexed not in digests:
            return None
        return RankImage(
            source=self.source,
            incarnation=self.endpoint.incarnation,
            sequence=stream.indexed,
            digests=digests,
            complete=stream.sequence.complete,
            block_size=self.rank.decoder.block_size,
            groups=dict(self.rank.decoder.groups),
        )

    def offer(self, image: RankImage, index: ImageIndex, anchors: Anchors) -> None:
        """Begin with an image, if it proves to be of the same publisher."""
        if self.stream is not None:
            offer = Offer(image.sequence, image.digests, image.complete)
            self.stream.offer(offer, self._fill(image, index, anchors))

    def _fill(self, image: RankImage, index: ImageIndex, anchors: Anchors) -> Iterator[None]:
        self.rank.resume(image.block_size, image.groups)
        self.filled_blocks = image.blocks
        yield from fill(index, self.rank.number, image.segments, anchors)

    def close(self) -> None:
        """Forget the endpoint."""
        self.closed = True
        if self.detach is not None:
            self.detach()
        if self.stream is not None:
            self.stream.close()
        else:
            self.rank.close()

    def confidence(self) -> tuple[float, str]:
        """How sure we are of what the rank holds, 0 to 1, and what is wrong when it is less than 1."""
        if self.stream is None:
            return 0.3, "no KV events: guessed from our own picks"
        sequence = self.stream.sequence
        if not self.stream.connected:
            return (0.5, "publisher is not connected") if sequence.last is not None else (0.0, "never connected")
        if sequence.replaying:
            return 0.5, "a replay runs"
        if self.complete:
            return 1.0, ""
        seen = min(1.0, (self.rank.counts.stored + self.filled_blocks) / self.worker_blocks)
        lost = sequence.counts.lost + self.rank.counts.skipped[Skip.MISSED]
        why = f"{lost} batches lost" if lost else "events from before we came are unknown"
        return round(_UNHEALED * seen, 2), why

    def status(self) -> RankStatus:
        """What is known of the rank."""
        stream = self.stream.counts if self.stream else StreamCounts()
        sequence = self.stream.sequence.counts if self.stream else SequenceCounts()
        events, assumed = self.rank.counts, self.rank.assumed.counts
        last = self.stream.last_message_at if self.stream else None
        confidence, why = self.confidence()
        return RankStatus(
            endpoint=self.endpoint.name,
            rank=self.number,
            source=self.source,
            connected=self.stream is not None and self.stream.connected,
            confidence=confidence,
            why=why,
            complete=self.complete,
            idle_seconds=None if last is None else time.monotonic() - last,
            sequence=self.stream.sequence.last if self.stream else None,
            block_size=self.rank.block_size,
            blocks=self.rank.blocks,
            assumed=assumed.assumed,
            expired=assumed.expired,
            adopted=self.rank.adopted,
            parked=self.rank.parked,
            waiting=self.stream.waiting if self.stream else 0,
            messages=stream.messages,
            bad_frames=stream.bad_frames,
            batches=sequence.applied,
            replayed=sequence.replayed,
            lost=sequence.lost,
            repeated=sequence.repeated,
            restarts=sequence.restarts,
            replays=sequence.replays,
            replays_failed=sequence.replays_failed,
            stored=events.stored,
            removed=events.removed,
            cleared=events.cleared,
            full_queues=stream.full_queues,
            passed_over=stream.passed_over,
            faults=stream.faults,
            filled=stream.filled,
            refused=stream.refused,
            skipped={str(reason): count for reason, count in events.skipped.items()},
        )
