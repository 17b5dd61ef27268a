"""Reads one kind from an API server, and says how well that went."""

from collections.abc import Sequence

import msgspec

from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, UnreachableError
from epp.endpoints.kubernetes.objects import ObjectList
from epp.readiness.snapshot.document import EVERYWHERE, Section, State
from epp.readiness.snapshot.kinds import Kind, Scope
from epp.readiness.snapshot.objects import Meta, Struct

PAGE = 500
MOST_OBJECTS = 20_000
"""Objects of one kind; beyond it the kind counts as not read."""
SECONDS = 20.0
"""Silence of the API server that ends one read."""
NOT_FOUND = 404
FORBIDDEN = (401, 403)


class _ReadError(Exception):
    """A list could not be read."""

    def __init__(self, state: State, text: str) -> None:
        super().__init__(text)
        self.state = state


class _Named(Struct, frozen=True):
    metadata: Meta


async def read_kind(client: KubernetesClient, kind: Kind, namespaces: Sequence[str]) -> Section[object]:
    """The section of one kind; never raises for what the API server answers."""
    try:
        if kind.scope is not Scope.GIVEN:
            return _section(await _list(client, kind, None), (EVERYWHERE,))
    except _ReadError as problem:
        if problem.state is not State.DENIED or kind.scope is Scope.CLUSTER:
            return Section(state=problem.state, error="" if problem.state is State.ABSENT else str(problem))
    return await _read_in(client, kind, namespaces)


async def _read_in(client: KubernetesClient, kind: Kind, namespaces: Sequence[str]) -> Section[object]:
    """The objects of each namespace; the worst state counts, what could be read is kept."""
    objects: list[object] = []
    covered: list[str] = []
    failed: list[_ReadError] = []
    for namespace in namespaces:
        try:
            objects.extend(await _list(client, kind, namespace))
            covered.append(namespace)
        except _ReadError as problem:
            failed.append(problem)
    if not failed:
        return _section(objects, tuple(covered)) if covered else Section(state=State.UNKNOWN)
    if all(problem.state is State.ABSENT for problem in failed) and not covered:
        return Section(state=State.ABSENT)
    worst = State.ERROR if any(problem.state is State.ERROR for problem in failed) else State.DENIED
    return _section(objects, tuple(covered), worst, str(failed[0]))


def _section(
    objects: Sequence[object], namespaces: tuple[str, ...], state: State = State.OK, error: str = ""
) -> Section[object]:
    return Section(state=state, error=error, namespaces=namespaces, objects=tuple(sorted(objects, key=_order)))


def _order(found: object) -> tuple[str, str]:
    meta: Meta = found.metadata  # type: ignore[attr-defined]  # every kind has it
    return meta.namespace, meta.name


async def _list(client: KubernetesClient, kind: Kind, namespace: str | None) -> list[object]:
    """All objects, in the newest version that is served. Raises _ReadError."""
    for version in kind.versions:
        try:
            return await _pages(client, kind, kind.path(version, namespace))
        except ApiError as problem:
            if problem.status == NOT_FOUND:
                continue
            state = State.DENIED if problem.status in FORBIDDEN else State.ERROR
            raise _ReadError(state, str(problem)) from None
        except UnreachableError as problem:
            raise _ReadError(State.ERROR, str(problem)) from None
    raise _ReadError(State.ABSENT, f"the API server does not serve {kind.plural}.{kind.group}")


async def _pages(client: KubernetesClient, kind: Kind, path: str) -> list[object]:
    objects: list[object] = []
    query = {"limit": str(PAGE)}
    while True:
        async with client.get(path, query, silence_seconds=SECONDS) as response:
            page = msgspec.json.decode(await response.read(), type=ObjectList)
        objects.extend(_kept(kind, raw) for raw in page.items or ())
        if len(objects) > MOST_OBJECTS:
            raise _ReadError(State.ERROR, f"more than {MOST_OBJECTS} objects")
        if not page.metadata.continue_:
            return objects
        query["continue"] = page.metadata.continue_


def _kept(kind: Kind, raw: msgspec.Raw) -> object:
    """What is recorded of one object. Raises _ReadError when it is not what its API says."""
    try:
        return kind.keep(msgspec.json.decode(raw, type=kind.type))
    except msgspec.ValidationError as problem:
        name = msgspec.json.decode(raw, type=_Named).metadata.name
        raise _ReadError(State.ERROR, f"{kind.name} {name}: {problem}") from None
