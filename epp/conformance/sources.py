"""Where the rules come from. P1 to P14 number the statements of proposal 004 in their order (docs/conformance.md)."""

PROTOCOL = "GIE proposal 004, Endpoint Picker Protocol 1.0.0"
EXT_PROC = "Envoy, external_processor.proto v3"
SUITE = "GIE conformance suite"
HEALTH = "gRPC health checking protocol"
OBSERVED = "observed: "
"""Followed by the gateway, version or thread in which the rule was learnt."""
