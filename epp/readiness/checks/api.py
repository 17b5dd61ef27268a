"""Group A: the snapshot, the platform's version and the APIs that the chain needs."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from epp.readiness.aicr.measurements import Unmeasured, judge_constraint
from epp.readiness.chain import Chain
from epp.readiness.checks.sources import AICR, GATEWAY_API, GIE, OWN
from epp.readiness.rule import Group, NotApplicableError, Problem, check, warning
from epp.readiness.snapshot.document import State
from epp.readiness.snapshot.gateway_objects import GATEWAY_GROUP, LEGACY_POOL_GROUP, POOL_GROUP, Definition
from epp.readiness.snapshot.objects import annotations_of, condition

POOLS = f"inferencepools.{POOL_GROUP}"
LEGACY_POOLS = f"inferencepools.{LEGACY_POOL_GROUP}"
GRANTS = f"referencegrants.{GATEWAY_GROUP}"
BUNDLE = f"{POOL_GROUP}/bundle-version"


@check(
    1,
    "snapshot.accepted",
    group=Group.API,
    rule="the snapshot is of a known version and its digest fits",
    source=OWN,
    fix="take it anew with `epp snapshot`",
)
def accepted(_chain: Chain) -> Iterator[Problem]:
    """A snapshot that is not accepted ends the command before any check; see snapshot.files."""
    return iter(())


@check(
    2,
    "snapshot.complete",
    group=Group.API,
    needs=(1,),
    rule="the snapshot is recent, and every kind in it could be read",
    source=OWN,
    fix="take it anew, with rights to get and list these kinds",
    advisory=True,
)
def complete(chain: Chain) -> Iterator[Problem]:
    captured = datetime.fromisoformat(chain.body.metadata.captured_at)
    age = chain.now - (captured if captured.tzinfo else captured.replace(tzinfo=UTC))
    if age > timedelta(hours=chain.policy.max_age_hours):
        yield warning(f"the snapshot is {age.total_seconds() / 3600:.0f} hours old", "snapshot")
    for name, section in chain.body.sections:
        if section.state not in (State.OK, State.ABSENT):
            yield warning(
                f"{name} could not be read at capture ({section.state}); what needs it is unknown", "snapshot"
            )


@check(
    3,
    "platform.constraints",
    group=Group.API,
    needs=(1,),
    rule="the constraints of the user, or of the AICR recipe, hold",
    source=AICR,
    fix="change what the constraint is about, or the constraint",
)
def constraints(chain: Chain) -> Iterator[Problem]:
    given = chain.policy.constraints
    judged = [(one, judge_constraint(chain.body, one)) for one in given]
    here = [(one, outcome) for one, outcome in judged if outcome is not Unmeasured.ELSEWHERE]
    if not here:
        others = ", ".join(one.name for one in given)
        raise NotApplicableError(f"AICR's own readiness phase judges {others}" if given else "no constraint is given")
    for one, outcome in here:
        if isinstance(outcome, str):
            problem = Problem(outcome, one.name)
            yield warning(problem.text, problem.where) if one.advisory else problem


@check(
    4,
    "api.definitions",
    group=Group.API,
    needs=(1,),
    rule="the CRDs of Gateway API and InferencePool exist, are Established and serve v1",
    source=f"{GATEWAY_API}; {GIE}",
    fix="install the Gateway API and Inference Extension CRDs of a release",
)
def definitions(chain: Chain) -> Iterator[Problem]:
    known = {it.metadata.name: it for it in chain.cluster(chain.body.sections.definitions, "CRDs")}
    for name in _needed(chain):
        found = known.get(name)
        if found is None and name == POOLS and LEGACY_POOLS in known:
            yield Problem("legacy InferencePool API only; v1 needed", f"CRD {LEGACY_POOLS}")
        elif found is None:
            yield Problem(f"CRD {name} missing", f"CRD {name}")
        else:
            yield from _usable(found)


def _usable(found: Definition) -> Iterator[Problem]:
    name = found.metadata.name
    established = condition(found.status.conditions, "Established")
    if established is None or established.status != "True":
        yield Problem(f"CRD {name} not Established", f"CRD {name}")
    versions = ("v1", "v1beta1") if name == GRANTS else ("v1",)
    if not any(version.name in versions and version.served for version in found.spec.versions):
        yield Problem(f"CRD {name} does not serve {' or '.join(versions)}", f"CRD {name}")


def _needed(chain: Chain) -> list[str]:
    names = [f"{plural}.{GATEWAY_GROUP}" for plural in ("gatewayclasses", "gateways", "httproutes")]
    crosses = any(
        chain.pool_ref is not None and route.metadata.namespace != chain.pool_ref.namespace
        for route in (chain.routes if chain.pool_ref else ())
    )
    return [*names, POOLS, *([GRANTS] if crosses else [])]


@check(
    5,
    "api.one-bundle",
    group=Group.API,
    needs=(4,),
    rule="all Inference Extension CRDs come from one release",
    source=f"{GIE}: annotation {BUNDLE}",
    fix="apply all CRDs of one release of the Inference Extension",
)
def one_bundle(chain: Chain) -> Iterator[Problem]:
    bundles: dict[str, str] = {}
    for found in chain.cluster(chain.body.sections.definitions, "CRDs"):
        version = annotations_of(found).get(BUNDLE)
        if version and found.metadata.name.endswith((POOL_GROUP, LEGACY_POOL_GROUP)):
            bundles[found.metadata.name] = version
    if len(set(bundles.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(bundles.items()))
        yield Problem(f"mixed GAIE bundle versions: {listed}", f"CRD {POOLS}")


CHECKS = (accepted, complete, constraints, definitions, one_bundle)
