"""From settings to the policy."""

import difflib
import random
from collections.abc import Callable

from epp.scheduling.approximate_prefix import ApproximatePrefix
from epp.scheduling.policy import Policy
from epp.scheduling.predicted_ttft import PredictedTtft, Prices
from epp.scheduling.round_robin import RoundRobin
from epp.settings import Settings, SettingsError

Build = Callable[[Settings, random.Random], Policy]

POLICIES: dict[str, Build] = {
    PredictedTtft.name: lambda settings, draw: PredictedTtft(draw, _prices(settings)),
    RoundRobin.name: lambda _settings, _draw: RoundRobin(),
    ApproximatePrefix.name: lambda _settings, _draw: ApproximatePrefix(),
}


def policy_from(settings: Settings, draw: random.Random | None = None) -> Policy:
    """The policy that `EPP_POLICY` names; `draw` decides between equal endpoints.

    Raises SettingsError for an unknown name.
    """
    build = POLICIES.get(settings.policy)
    if build is None:
        near = difflib.get_close_matches(settings.policy, POLICIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"EPP_POLICY={settings.policy!r}: expected one of {', '.join(sorted(POLICIES))}{hint}")
    return build(settings, draw or random.Random())  # noqa: S311 - no secret hangs on a tie


def _prices(settings: Settings) -> Prices:
    return Prices(
        least=settings.price_least,
        most=settings.price_most,
        in_flight=settings.price_in_flight,
        context=settings.price_context,
        exploration=settings.exploration,
    )
