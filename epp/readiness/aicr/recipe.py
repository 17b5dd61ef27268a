"""An AICR recipe, read for its constraints and component pins; nothing else of it is ours to judge."""

from pathlib import Path

import msgspec

from epp.readiness.aicr.constraint import Constraint, ConstraintError, constraint
from epp.readiness.snapshot.files import SnapshotError, tree_of

API_VERSIONS = ("aicr.nvidia.com/v1alpha1", "aicr.run/v1alpha2", "aicr.run/v1alpha3", "aicr.run/v1beta1")
MOST_BYTES = 4 * 1024 * 1024


class RecipeError(Exception):
    """The file is no recipe that we can read; the text says why."""


class _Constraint(msgspec.Struct, rename="camel"):
    name: str
    value: str
    severity: str = "error"


class _Component(msgspec.Struct, rename="camel"):
    name: str
    version: str = ""


class _Phase(msgspec.Struct, rename="camel"):
    constraints: tuple[_Constraint, ...] = ()
    checks: tuple[str, ...] = ()


class _Recipe(msgspec.Struct, rename="camel"):
    api_version: str = ""
    constraints: tuple[_Constraint, ...] = ()
    component_refs: tuple[_Component, ...] = ()
    validation: dict[str, _Phase] = {}


class Recipe(msgspec.Struct, frozen=True):
    """What we read of a recipe."""

    constraints: tuple[Constraint, ...]
    """Its own, those of its readiness and deployment phases, and one for each pin of a component."""
    checks: tuple[str, ...]
    """Checks that AICR itself runs for it."""


def read_recipe(place: str) -> Recipe:
    """The recipe in a file. Raises RecipeError."""
    try:
        with Path(place).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise RecipeError(f"recipe {place}: {problem.strerror}") from None
    if len(data) > MOST_BYTES:
        raise RecipeError(f"recipe {place}: over {MOST_BYTES >> 20} MiB")
    return parse_recipe(data, place)


def parse_recipe(data: bytes, where: str) -> Recipe:
    """Raises RecipeError."""
    try:
        found = msgspec.convert(tree_of(data, where), _Recipe)
    except SnapshotError as problem:
        raise RecipeError(str(problem).replace("snapshot", "recipe", 1)) from None
    except (msgspec.ValidationError, RecursionError) as problem:
        raise RecipeError(f"recipe {where}: {problem}") from None
    if found.api_version not in API_VERSIONS:
        raise RecipeError(
            f"recipe {where}: apiVersion {found.api_version!r}, expected one of {', '.join(API_VERSIONS)}"
        )
    phases = [phase for name, phase in found.validation.items() if name in ("readiness", "deployment")]
    stated = [*found.constraints, *(one for phase in phases for one in phase.constraints)]
    try:
        given = [constraint(one.name, one.value, advisory=one.severity in ("warning", "info")) for one in stated]
        pins = [_pin(component) for component in found.component_refs if component.version]
    except ConstraintError as problem:
        raise RecipeError(f"recipe {where}: {problem}") from None
    checks = tuple(dict.fromkeys(name for phase in found.validation.values() for name in phase.checks))
    return Recipe(constraints=tuple(dict.fromkeys([*given, *pins])), checks=checks)


def _pin(component: _Component) -> Constraint:
    """A pin is advice: the snapshot sees only charts in the namespaces that it covers."""
    return constraint(f"Deployment.{component.name}.version", f"== {component.version}", advisory=True)
