"""What engines say about their caches, in one form for all of them."""

from array import array
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from epp.prompts.prompt import Media


class Tier(IntEnum):
    """Where a block lies, the nearest first."""

    GPU = 0
    HOST = 1
    DISK = 2
    EXTERNAL = 3


class Skip(StrEnum):
    """Why an event could not be used; each is counted."""

    PAYLOAD = "payload"
    """The batch is no msgpack array of time, events and rank."""
    UNKNOWN = "unknown_event"
    MALFORMED = "malformed"
    """A known event without a field that it must have, or with a value out of range."""
    SHAPE = "shape"
    """Token ids and hashes do not line up, as in groups that keep only some of their blocks."""
    GROUP = "group"
    """A KV cache group other than full attention."""
    REMOTE = "remote"
    """The block lies on another worker or somewhere unknown."""
    PARTIAL = "partial_block"
    """An entry finer than the engine's block size."""
    BLOCK_SIZE = "block_size"
    """Blocks of another size than the one that is set, where events may not change it."""
    ADAPTER = "adapter_without_name"
    MEDIA = "media_without_offset"
    EMBEDS = "prompt_embeds"
    """Prompt embeddings: no token ids tell what was computed."""
    SELF_PARENT = "own_parent"
    NO_TOKENS = "no_tokens"
    """A store that names only hashes, none of which is known."""
    ORPHAN = "unknown_parent"
    """Parked because its parent is not known; it counts again when it is dropped."""
    TOO_LONG = "too_long"
    """Tokens behind the longest prompt that is indexed."""
    LOAD = "load_report"
    OTHER_RANK = "other_rank"
    """An event of Dynamo's plane of another worker or rank than this publisher's."""
    REPEATED = "repeated_event"
    """An event of Dynamo's plane whose id had come before."""
    MISSED = "missed_event"
    """An event id of Dynamo's plane that never came."""


@dataclass(slots=True)
class Stored:
    """Blocks that a rank now holds: `hashes[i]` names tokens `i * block_size` to `(i + 1) * block_size`.

    Without tokens (`block_size` 0) the event says only that known hashes now lie in `tier` too.
    """

    hashes: list[int]
    parent: int | None
    tokens: "array[int]"
    """Token ids as 32-bit integers."""
    block_size: int
    tier: Tier = Tier.GPU
    adapter: str = ""
    salt: str = ""
    media: tuple[Media, ...] = ()
    """Items that begin in these blocks; offsets count from the first token of the event."""


@dataclass(slots=True)
class Removed:
    """Blocks of which the rank lost one copy each."""

    hashes: list[int]
    tier: Tier = Tier.GPU
    whole: bool = False
    """All copies at once: the publisher counts them itself."""


@dataclass(slots=True)
class Cleared:
    """The rank lost all its blocks, in every tier."""


Event = Stored | Removed | Cleared
