"""Every check, grouped by subject."""

from epp.conformance.check import Check
from epp.conformance.checks import (
    connection,
    gateways,
    health,
    hooks,
    hygiene,
    modes,
    pick,
    refusal,
    request_body,
    response,
    subset,
)

ALL: tuple[Check, ...] = (
    *connection.CHECKS,
    *pick.CHECKS,
    *subset.CHECKS,
    *request_body.CHECKS,
    *response.CHECKS,
    *modes.CHECKS,
    *refusal.CHECKS,
    *hygiene.CHECKS,
    *health.CHECKS,
    *gateways.CHECKS,
    *hooks.CHECKS,
)
"""In the order in which a user would mend what they find."""
