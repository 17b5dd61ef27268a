"""Whether long prompts are prefilled on workers of their own, as the EPP counts."""

from epp.readiness.checks.sources import DYNAMO
from epp.readiness.live import requests
from epp.readiness.live.check import LiveCheck, live_check
from epp.readiness.live.lab import Lab
from epp.readiness.rule import Group, Mode, NotApplicableError, Problem, warning

WORDS = 1000
"""Of a prompt that every decider takes for long: some thousand tokens."""


@live_check(
    59,
    "traffic.disaggregated",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(51,),
    rule="long prompts are sent with a live prefill worker beside the one that decodes",
    source=DYNAMO,
    fix="see `epp explain`, the roles of workers, and the metric epp_disaggregation_total",
)
async def disaggregated(lab: Lab) -> list[Problem]:
    """The headers that name both workers end at the sidecar; the EPP counts what it sent."""
    before = await requests.disaggregations(lab)
    answer = await requests.chat(lab, requests.prompt(WORDS))
    rises = await requests.disaggregated_since(lab, before)
    if not rises:
        raise NotApplicableError("the EPP counts none by epp_disaggregation_total: the pool has no prefill workers")
    lab.seen = ", ".join(sorted(rises))
    if "missing" in rises:
        return [Problem("prefill instance missing: the EPP knows no ready worker that prefills", "EPP")]
    if answer.status != 200:
        return [Problem(f"a long prompt gets status {answer.status}: {answer.text}", "EPP")]
    return [] if "disaggregated" in rises else [warning("a long prompt was prefilled where it was decoded", "EPP")]


CHECKS: tuple[LiveCheck, ...] = (disaggregated,)
