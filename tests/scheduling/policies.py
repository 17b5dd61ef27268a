"""Policies by name for tests."""

import random
from collections.abc import Callable

from epp.scheduling.policies import POLICIES, policy_from
from epp.scheduling.policy import Policy
from epp.settings import Settings

NAMES = sorted(POLICIES)


def build(name: str, **settings: object) -> Callable[[random.Random], Policy]:
    chosen = Settings(policy=name, **settings)  # type: ignore[arg-type]
    return lambda draw: policy_from(chosen, draw)


def policy(name: str, **settings: object) -> Policy:
    return build(name, **settings)(random.Random(1))
