"""What a caller with the secret may learn of the decision on its own request, in a response header.

Cached-token counts are an oracle about other tenants' prompts, so nobody else gets them.
"""

import hmac
import json
from collections.abc import Callable

from epp.scheduling.candidates import Header
from epp.scheduling.explain import CandidateRecord, DecisionRecord, cheapest
from epp.scheduling.scheduler import Decision
from epp.settings import Explain, Settings, SettingsError

ASKING_HEADER = "x-epp-explain"
"""Request header that carries the secret; it never reaches a worker."""
ANSWERING_HEADER = "x-epp-decision"
_LEAST_SECRET = 16


class ExplainHeader:
    """Explains the decision that was just made, to those who may know."""

    def __init__(self, secret: str, last: Callable[[], DecisionRecord | None]) -> None:
        """`last` is the newest decision."""
        self._secret = secret.encode()
        self._last = last

    def asked(self, header: Header) -> bool:
        """Whether the request carries the secret; takes as long for a near miss as for a far one."""
        given = header(ASKING_HEADER)
        return bool(given) and hmac.compare_digest(given.encode(), self._secret)

    def explanation(self, decision: Decision) -> str:
        """The header's value: one line of ASCII JSON."""
        told: dict[str, object] = {
            "endpoint": decision.endpoint.name,
            "reason": decision.reason,
            "cached_tokens": decision.cached_tokens,
            "predicted_ttft": round(decision.predicted_ttft, 4),
        }
        if decision.prefill is not None:
            told["prefill"] = decision.prefill.name
        record = self._last()
        if record is not None:
            told |= {"policy": record.policy, "prompt_tokens": record.prompt_tokens}
            told["candidates"] = [_brief(row) for row in cheapest(record)]
        return json.dumps(told, separators=(",", ":"))


def explain_header_from(settings: Settings, last: Callable[[], DecisionRecord | None]) -> ExplainHeader | None:
    """None where no header is wanted. Raises SettingsError where it is and there is no secret for it."""
    if settings.explain is not Explain.HEADER:
        return None
    secret = settings.explain_secret.get_secret_value() if settings.explain_secret is not None else ""
    if len(secret) < _LEAST_SECRET:
        raise SettingsError(f"EPP_EXPLAIN=header: needs EPP_EXPLAIN_SECRET, at least {_LEAST_SECRET} characters")
    return ExplainHeader(secret, last)


def _brief(row: CandidateRecord) -> dict[str, object]:
    return {
        "name": row.name,
        "cost": None if row.cost is None else round(row.cost, 4),
        "cached_tokens": row.cached_tokens,
        "in_flight": row.in_flight,
        "prefill_tokens": row.prefill_tokens,
        "predicted_ttft": row.ttft,
    }
