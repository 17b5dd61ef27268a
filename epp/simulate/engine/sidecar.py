"""What stands between the Gateway and a worker in some deployments, and what it demands of a pick."""

from collections.abc import Mapping
from enum import StrEnum

from epp.simulate.engine.requests import RequestError

_DYNAMO_HEADERS = ("x-dynamo-worker-instance-id", "x-worker-instance-id")


class Sidecar(StrEnum):
    """The kind of sidecar to imitate."""

    NONE = "none"
    DYNAMO = "dynamo"


def check_headers(sidecar: Sidecar, headers: Mapping[str, str], instance_id: int | None) -> None:
    """Dynamo's frontend in direct mode refuses a request that does not name a worker it knows.

    Raises RequestError with what that sidecar answers; `instance_id` None: any number is known.
    """
    if sidecar is Sidecar.NONE:
        return
    value = next((headers[name] for name in _DYNAMO_HEADERS if name in headers), None)
    if value is None:
        raise RequestError("Invalid request: no worker instance id; direct mode needs x-dynamo-worker-instance-id")
    if not value.isdecimal():
        raise RequestError(f"Invalid request: worker instance id {value!r} is not a number")
    if instance_id is not None and int(value) != instance_id:
        raise RequestError(f"Invalid request: worker instance {value} is not known")
