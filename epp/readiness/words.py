"""What the settings, arguments and ports of a container say, once recorded."""

from collections.abc import Mapping

from epp.readiness.chain import Chain
from epp.readiness.snapshot.core_objects import Container, EnvVar, Pod, PortRef
from epp.readiness.snapshot.redact import REDACTED, SETTINGS


def settings_of(chain: Chain, pod: Pod, container: Container) -> tuple[dict[str, str], bool]:
    """Environment variables of a container, and whether all of them are known."""
    known = True
    found: dict[str, str] = {}
    maps = chain.body.sections.config_maps
    for source in container.env_from or ():
        reference = source.config_map_ref
        if reference is None:
            known = False  # from a Secret, which nobody reads
            continue
        here = [it for it in maps.objects if it.metadata.namespace == pod.metadata.namespace]
        data = next((it.data or {} for it in here if it.metadata.name == reference.name), None)
        known = known and data is not None
        found |= {source.prefix + name: value for name, value in (data or {}).items()}
    for variable in container.env or ():
        value = _value(pod, variable)
        if value is not None:
            found[variable.name] = value
    return found, known


def _value(pod: Pod, variable: EnvVar) -> str | None:
    """The value, also of a reference to the pod's own metadata."""
    if variable.value is not None or variable.value_from is None or variable.name not in SETTINGS:
        return variable.value
    path = variable.value_from.field_ref.field_path if variable.value_from.field_ref else ""
    return {"metadata.namespace": pod.metadata.namespace, "metadata.name": pod.metadata.name}.get(path)


def flags_of(container: Container) -> dict[str, str]:
    """Flags of the command line with their values; a flag without one is `true`."""
    flags: dict[str, str] = {}
    line = [*(container.command or ()), *(container.args or ())]
    for at, word in enumerate(line):
        if not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        following = line[at + 1] if at + 1 < len(line) else "--"
        flags[flag] = value if equals else ("true" if following.startswith("--") else following)
    return {flag: value for flag, value in flags.items() if value != REDACTED}


def first_of(found: Mapping[str, str], *names: str) -> str | None:
    """The value of the first name that is there."""
    return next((found[name] for name in names if found.get(name)), None)


def container_with_port(pod: Pod, number: int) -> Container | None:
    """The container that declares a port; sidecars among the init containers count."""
    containers = (*pod.spec.containers, *(pod.spec.init_containers or ()))
    return next((it for it in containers if any(port.container_port == number for port in it.ports or ())), None)


def port_number(pod: Pod, reference: PortRef | None, default: int) -> int | None:
    """The number of a container port that a Service means; None when the pod has no port of that name."""
    if reference is None:
        return default
    if isinstance(reference, int):
        return reference
    containers = (*pod.spec.containers, *(pod.spec.init_containers or ()))
    ports = (port for it in containers for port in it.ports or ())
    return next((port.container_port for port in ports if port.name == reference), None)
