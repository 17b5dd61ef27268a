"""Constraints as AICR writes and compares them: `name` is Type.Subtype.Key, `value` an operator and an operand."""

import re
from collections.abc import Callable
from dataclasses import dataclass

_OPERATORS = (">=", "<=", "==", "!=", ">", "<")
_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[-+].*)?", re.ASCII)
_ORDERED: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


class ConstraintError(ValueError):
    """Not a constraint, or one that cannot be evaluated; the text says why."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One demand on one measured value."""

    name: str
    value: str
    advisory: bool = False
    """Severity warning or info in the recipe."""

    @property
    def path(self) -> tuple[str, str, str]:
        """Type, subtype and key; the key may hold dots itself."""
        first, second, key = self.name.split(".", 2)
        return first, second, key

    def __str__(self) -> str:
        return f"{self.name} {self.value}"


def constraint(name: str, value: str, *, advisory: bool = False) -> Constraint:
    """Raises ConstraintError when it is none."""
    parts = name.split(".", 2)
    if len(parts) != 3 or not all(parts):
        raise ConstraintError(f"constraint {name!r}: expected Type.Subtype.Key")
    operator, operand = _split(value)
    if not operand:
        raise ConstraintError(f"constraint {name}: empty value")
    if operator in _ORDERED and version(operand) is None:
        raise ConstraintError(f"constraint {name} {value}: {operator} needs a version")
    return Constraint(name, value, advisory)


def holds(wanted: str, actual: str) -> bool:
    """Whether `actual` is what the constraint's value asks for. Raises ConstraintError when they cannot be compared."""
    operator, operand = _split(wanted)
    if not operand:
        raise ConstraintError("empty value")
    if not operator:
        return actual == operand
    ours, theirs = version(actual), version(operand)
    if operator in _ORDERED:
        if ours is None or theirs is None:
            raise ConstraintError(f"{actual!r} cannot be compared with {wanted!r}: no version")
        return _ORDERED[operator](*_same_precision(ours, theirs))
    if ours is not None and theirs is not None:
        left, right = _same_precision(ours, theirs)
        return (left == right) == (operator == "==")
    return (actual == operand) == (operator == "==")


def version(text: str) -> tuple[int, ...] | None:
    """Up to three numbers; a leading `v` and whatever follows `-` or `+` do not count."""
    found = _VERSION.fullmatch(text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def _same_precision(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both at the lower of the two precisions: 1.34 and 1.34.2 are equal."""
    length = min(len(left), len(right))
    return left[:length], right[:length]


def _split(value: str) -> tuple[str, str]:
    text = value.strip()
    operator = next((one for one in _OPERATORS if text.startswith(one)), "")
    return operator, text[len(operator) :].strip()
