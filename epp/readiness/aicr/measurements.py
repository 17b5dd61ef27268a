"""The values that constraints speak of, as far as a snapshot of ours holds them.

Names are AICR's where AICR has them (K8s.server.version, K8s.image.NAME, Deployment.COMPONENT.version); those of the
chain are ours: Chain.POOL.failure-mode and Chain.POOL.target-ports.
"""

from enum import Enum, auto

from epp.readiness.aicr.constraint import Constraint, ConstraintError, holds
from epp.readiness.snapshot.document import Body

OTHERS = frozenset({"OS", "GPU", "SystemD", "NodeTopology", "NetworkTopology"})
"""Types that AICR's agent measures on nodes; its readiness phase judges them, we do not."""


class Unmeasured(Enum):
    """Why there is no value."""

    ELSEWHERE = auto()
    """AICR measures it on nodes."""


def judge_constraint(body: Body, one: Constraint) -> str | Unmeasured | None:
    """What is wrong, None when it holds. A value that is missing never passes."""
    kind, subtype, key = one.path
    if kind in OTHERS:
        return Unmeasured.ELSEWHERE
    actual = value(body, kind, subtype, key)
    if actual is None:
        return f"{one.name} is not in the snapshot, so {one.value} cannot be said to hold"
    try:
        return None if holds(one.value, actual) else f"{one.name} is {actual}, which does not meet {one.value}"
    except ConstraintError as problem:
        return f"{one.name}: {problem}"


def value(body: Body, kind: str, subtype: str, key: str) -> str | None:
    """The measured value at Type.Subtype.Key."""
    platform = body.platform
    match kind, subtype:
        case "K8s", "server" if key == "version":
            return platform.server_version
        case "K8s", "image":
            return platform.images.get(key)
        case "K8s", "api":
            return None if platform.api_groups is None else ",".join(platform.api_groups.get(key, ())) or "absent"
        case "Deployment", _ if key == "version":
            return platform.charts.get(subtype)
        case "Chain", _:
            return _of_pool(body, subtype, key)
    return None


def _of_pool(body: Body, subtype: str, key: str) -> str | None:
    """Chain.<pool's name>.failure-mode, .target-ports; of the only pool of that name."""
    pools = [pool for pool in body.sections.inference_pools.objects if pool.metadata.name == subtype]
    if len(pools) != 1:
        return None
    spec = pools[0].spec
    if key == "failure-mode" and spec.endpoint_picker_ref is not None:
        return spec.endpoint_picker_ref.failure_mode
    return ",".join(str(port.number) for port in spec.target_ports) if key == "target-ports" else None
