"""What `/status` says of the peers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One other process, or a place where one is expected."""

    address: str
    name: str = ""
    epp: str = ""
    """Version of its program; empty: never heard."""
    message_version: int = 0
    present: bool = False
    """Whether it was heard lately; else its load does not count here."""
    hears_us: bool = False
    seconds_since_heard: float | None = None
    lag_seconds: float | None = None
    """What a message takes on its way, by half of a round trip; clocks are not compared."""
    reservations: int = 0
    in_step: bool = False
    """Whether we have its whole state; else it was asked for it."""
    same_keys: bool | None = None
    """Whether its prefix keys mean the same here, so that its prompts count; None: it told of none yet."""
    lost: int = 0
    """Messages that did not come."""
    mended: int = 0
    """Times that its whole state replaced what was missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartStatus:
    """What this process began with."""

    peer: str = ""
    """Whose snapshot it took; empty: nobody's."""
    problem: str = ""
    """Why it took none."""
    ranks: int = 0
    blocks: int = 0
    seconds: float = 0.0
    given: int = 0
    """Snapshots that it gave to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersStatus:
    """The section of `/status`."""

    enabled: bool = False
    name: str = ""
    encrypted: bool = False
    problem: str = ""
    """Why load sharing does not work; empty when it does."""
    peers: tuple[PeerStatus, ...] = ()
    sent: int = 0
    received: int = 0
    bad: int = 0
    """What came and was no message of ours."""
    refused_keys: int = 0
    """Connections with a key that is not ours."""
    vanished: int = 0
    """Times that a peer fell silent and its load was dropped."""
    prompts_told: int = 0
    """Prompts of others that count here until events have named their blocks."""
    prompts_foreign: int = 0
    """Prompts of others that say nothing here, as their prefix keys have another secret."""
    prompt_keys_crowded_out: int = 0
    """Pieces of prompts that made room for newer ones before their time."""
    warm_start: WarmStartStatus = field(default_factory=WarmStartStatus)
