"""Dynamo workers: the instance id that their sidecar demands in a header."""

from epp.endpoints.siphash import siphash13

_ID_BITS = 53


def instance_id(pod_name: str) -> int:
    """The worker instance id of a pod: SipHash-1-3 with zero keys over the UTF-8 name and one 0xFF byte, low 53 bits.

    A worker that shares its pod with others has its own name, `<pod>-<container>`.
    """
    return siphash13(pod_name.encode() + b"\xff") & ((1 << _ID_BITS) - 1)
