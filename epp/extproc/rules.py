"""What the settings say about every exchange."""

from dataclasses import dataclass, field

from epp.extproc.hygiene import OBJECTIVE_HEADERS, Names
from epp.settings import BodyMode, ExchangeSettings, SettingsError, comma_list


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRules:
    """Read once at the start; the modes hold where the gateway announces none."""

    request_body_mode: BodyMode = BodyMode.AUTO
    response_body_mode: BodyMode = BodyMode.AUTO
    max_body_bytes: int = 32 * 1024 * 1024
    reject_large_bodies: bool = False
    reject_bad_requests: bool = False
    max_buffered_bytes: int = 1024 * 1024 * 1024
    max_streams: int = 20_000
    pick_timeout_seconds: float = 1.0
    trusted: frozenset[str] = frozenset(OBJECTIVE_HEADERS)
    """Routing headers that a client may set."""
    names: Names = field(default_factory=Names)
    conformance_hooks: bool = False

    @classmethod
    def of(cls, settings: ExchangeSettings) -> "ExchangeRules":
        """The rules in `settings`. Raises SettingsError for a header that no client may be trusted with."""
        names = Names(
            destination=settings.destination_header.lower(),
            destination_namespace=settings.destination_namespace,
            subset=settings.subset_key,
            subset_namespace=settings.subset_namespace,
            served=settings.served_key,
            served_namespace=settings.served_namespace,
        )
        trusted = frozenset(comma_list(settings.trusted_headers))
        if names.destination in trusted:
            raise SettingsError(f"EPP_TRUSTED_HEADERS: a client must never choose its worker by {names.destination}")
        return cls(
            request_body_mode=settings.request_body_mode,
            response_body_mode=settings.response_body_mode,
            max_body_bytes=settings.max_body_bytes,
            reject_large_bodies=settings.reject_large_bodies,
            reject_bad_requests=settings.reject_bad_requests,
            max_buffered_bytes=settings.max_buffered_bytes,
            max_streams=settings.max_streams,
            pick_timeout_seconds=settings.pick_timeout_ms / 1000,
            trusted=trusted,
            names=names,
            conformance_hooks=settings.conformance_hooks,
        )
