"""From the name of a policy to the policy."""

import difflib
import random
from collections.abc import Callable

from epp.scheduling.approximate_prefix import ApproximatePrefix
from epp.scheduling.policy import Policy
from epp.scheduling.predicted_ttft import PredictedTtft
from epp.scheduling.round_robin import RoundRobin
from epp.settings import SettingsError

POLICIES: dict[str, Callable[[random.Random], Policy]] = {
    PredictedTtft.name: PredictedTtft,
    RoundRobin.name: lambda _draw: RoundRobin(),
    ApproximatePrefix.name: lambda _draw: ApproximatePrefix(),
}


def policy_named(name: str, draw: random.Random | None = None) -> Policy:
    """The policy that `EPP_POLICY` names; `draw` decides between equal endpoints.

    Raises SettingsError for an unknown name.
    """
    build = POLICIES.get(name)
    if build is None:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"EPP_POLICY={name!r}: expected one of {', '.join(sorted(POLICIES))}{hint}")
    return build(draw or random.Random())  # noqa: S311 - no secret hangs on a tie
