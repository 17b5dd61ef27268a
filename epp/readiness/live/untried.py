"""Numbered checks that nothing here can try; they say so, and what would."""

from epp.readiness.checks.sources import DYNAMO, GIE
from epp.readiness.live.check import LiveCheck, live_check
from epp.readiness.live.lab import Lab
from epp.readiness.rule import Group, Mode, NotApplicableError, Problem


@live_check(
    57,
    "traffic.failure-mode",
    mode=Mode.DESTRUCTIVE,
    group=Group.TRAFFIC,
    needs=(52,),
    rule="without an EPP, FailClose answers 5xx and FailOpen serves from any worker",
    source=f"{GIE}, failureMode",
    fix="scale the EPP to 0 in a quiet hour and run --traffic; with Envoy, POSTs get 500 either way",
)
async def failure_mode(_lab: Lab) -> list[Problem]:
    raise NotApplicableError("destructive: the EPP would have to be stopped")


@live_check(
    59,
    "traffic.disaggregated",
    mode=Mode.TRAFFIC,
    group=Group.TRAFFIC,
    needs=(51,),
    rule="long prompts are sent with the ids of a live prefill and decode instance",
    source=DYNAMO,
    fix="see `epp explain` and the metric epp_disaggregation_total",
)
async def disaggregated(_lab: Lab) -> list[Problem]:
    raise NotApplicableError("headers at a sidecar are not seen from outside: see epp_disaggregation_total")


CHECKS: tuple[LiveCheck, ...] = (failure_mode, disaggregated)
