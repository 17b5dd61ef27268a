"""What a decoder makes of one batch, all at once."""

from collections import Counter
from dataclasses import dataclass, field

from epp.kvcache.events import Event, Skip
from epp.kvcache.rank import EventDecoder


@dataclass
class Decoded:
    events: list[Event] = field(default_factory=list)
    skipped: Counter[Skip] = field(default_factory=Counter)
    pauses: int = 0


def decoded(decoder: EventDecoder, payload: bytes) -> Decoded:
    batch = Decoded()
    for event in decoder.decode(payload, batch.skipped):
        if event is None:
            batch.pauses += 1
        else:
            batch.events.append(event)
    return batch
