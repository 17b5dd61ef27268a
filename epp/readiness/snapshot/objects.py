"""What all recorded objects share. A field that no type here names is never recorded: the types are the redaction.

Field names and meaning: Kubernetes API v1, Gateway API v1, Gateway API Inference Extension v1.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all objects: camelCase in the document, unknown fields skipped, defaults left out."""


class Owner(Struct, frozen=True):
    kind: str = ""
    name: str = ""


class Meta(Struct, frozen=True):
    name: str
    namespace: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None


class Object(Protocol):
    """Any recorded object."""

    @property
    def metadata(self) -> Meta:
        """Its name, and more."""


class Condition(Struct, frozen=True):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None


Conditions = Sequence[Condition] | None


class Expression(Struct, frozen=True):
    key: str
    operator: str = "In"
    values: tuple[str, ...] | None = None


class Selector(Struct, frozen=True):
    match_labels: Mapping[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None

    def selects(self, labels: Mapping[str, str] | None) -> bool:
        """Whether it selects an object with `labels`; an empty selector selects all."""
        given = labels or {}
        return all(given.get(key) == value for key, value in (self.match_labels or {}).items()) and all(
            _holds(expression, given) for expression in self.match_expressions or ()
        )


def _holds(expression: Expression, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression.key), expression.values or ()
    match expression.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def name_of(item: Object) -> str:
    """`namespace/name`, or the name alone for what has no namespace."""
    meta = item.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def labels_of(item: Object) -> Mapping[str, str]:
    """Its labels."""
    return item.metadata.labels or {}


def annotations_of(item: Object) -> Mapping[str, str]:
    """Its annotations, as far as they are recorded."""
    return item.metadata.annotations or {}


def condition(conditions: Conditions, name: str) -> Condition | None:
    """The condition of that type."""
    return next((found for found in conditions or () if found.type == name), None)
