"""What the user demands beyond the rules themselves."""

from dataclasses import dataclass, field

from epp.readiness.aicr.constraint import Constraint

API_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Numbers and names that a check compares with."""

    max_age_hours: float = 24.0
    """Age of a snapshot above which it is warned about."""
    failure_mode: str | None = None
    """FailClose or FailOpen; None: either."""
    paths: tuple[str, ...] = API_PATHS
    """Request paths that must reach the pool."""
    min_request_seconds: float = 60.0
    """Least request timeout of a rule: generations are long."""
    min_ready: int = 1
    """Least ready workers."""
    need_address: bool = True
    """Whether a Gateway without an address fails."""
    scoped: bool = False
    """Whether a Gateway open to any source fails."""
    max_restarts: int = 5
    """Restarts of an EPP container above which it is warned about."""
    constraints: tuple[Constraint, ...] = field(default=())
