"""Metrics of the HTTP/2 server."""

from prometheus_client import CollectorRegistry, Counter

from epp.extproc.transport.http2.errors import ErrorCode


class Http2Metrics:
    """Counts connections that did not end well."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._broken = Counter(
            "epp_http2_connections_broken",
            "Connections that were ended because the gateway broke the protocol or a limit, by HTTP/2 error code.",
            ["code"],
            registry=registry,
        )
        self._refused = Counter(
            "epp_http2_connections_refused",
            "Connections that were closed at once since EPP_MAX_CONNECTIONS were open.",
            registry=registry,
        )
        self._abandoned = Counter(
            "epp_http2_connections_abandoned",
            "Connections that were cut since the gateway was silent or took nothing for too long.",
            registry=registry,
        )

    def broken(self, code: ErrorCode) -> None:
        """One connection was ended for the peer's mistake."""
        self._broken.labels(code.name.lower()).inc()

    def refused(self) -> None:
        """One connection was one too many."""
        self._refused.inc()

    def abandoned(self) -> None:
        """One peer was given up."""
        self._abandoned.inc()
