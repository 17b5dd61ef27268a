"""The document that `/status` serves: one section from each part."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from epp.endpoints.discovery import DiscoveryStatus
from epp.endpoints.metrics import MetricsStatus
from epp.endpoints.status import PoolStatus
from epp.endpoints.suspects import SuspectsStatus
from epp.extproc.servicer import ExchangeStatus
from epp.extproc.transport.stream import CarrierStatus
from epp.kvcache.checkpoint import CheckpointStatus
from epp.kvcache.status import KvStatus
from epp.peers.status import PeersStatus
from epp.prompts.reader import PromptsStatus
from epp.scheduling.comparison import ComparisonReport
from epp.scheduling.ejection import EjectionStatus
from epp.scheduling.fidelity import FidelityStatus
from epp.scheduling.load import LoadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """The process that answers."""

    version: str
    uptime_seconds: float
    ready: bool
    waiting_for: tuple[str, ...] = ()
    """What readiness waits for, in words; empty when ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOfSeveral:
    """One of the processes of EPP_PROCESSES."""

    index: int
    pid: int | None
    ready: bool
    restarts: int
    """Times that it ended without being asked to."""
    open: int
    """Streams that it serves now."""
    begun: int
    """Streams since its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All that `/status` says; every part of the EPP adds its own section."""

    process: ProcessStatus
    discovery: DiscoveryStatus
    pool: PoolStatus
    suspects: SuspectsStatus
    exchanges: ExchangeStatus
    prompts: PromptsStatus
    settings: Mapping[str, str]
    """Settings in force, by environment variable."""
    kv: KvStatus = field(default_factory=lambda: KvStatus(enabled=False))
    """None: EPP_KV_EVENTS is off."""
    checkpoint: CheckpointStatus | None = None
    """None: EPP_CHECKPOINT_DIR is not set."""
    carrier: CarrierStatus = field(default_factory=lambda: CarrierStatus(name="grpcio"))
    load: LoadStatus = field(default_factory=LoadStatus)
    ejection: EjectionStatus = field(default_factory=EjectionStatus)
    engine_metrics: MetricsStatus = field(default_factory=MetricsStatus)
    comparison: ComparisonReport | None = None
    """What `epp shadow` found; None: this is an `epp serve`."""
    fidelity: FidelityStatus = field(default_factory=FidelityStatus)
    peers: PeersStatus = field(default_factory=PeersStatus)
    processes: tuple[OneOfSeveral, ...] = ()
    """Where EPP_PROCESSES is above 1; what is not summed is then of one of them."""


def encode(status: Status) -> bytes:
    """The JSON document."""
    return msgspec.json.encode(status)


def decode(document: bytes) -> Status:
    """The status in a JSON document; sections of a later version are ignored.

    Raises msgspec.DecodeError, or its subclass msgspec.ValidationError that names what does not fit.
    """
    return msgspec.json.decode(document, type=Status)
