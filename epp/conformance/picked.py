"""Where an answer says that the request goes, and what headers the worker would get."""

from collections.abc import Iterable

from epp._pb.base_pb2 import HeaderValueOption
from epp._pb.external_processor_pb2 import HeaderMutation, ProcessingResponse
from epp.conformance import address
from epp.conformance.exchange import Half, kind
from epp.conformance.messages import DESTINATION, LB_NAMESPACE, HttpRequest
from epp.conformance.verdict import FailedError


def set_by(half: Half, name: str) -> list[HeaderValueOption]:
    """What the request's answers set that header to, in order; names compare without case."""
    return [
        option
        for mutation in _mutations(half.answers)
        for option in mutation.set_headers
        if option.header.key.lower() == name
    ]


def value(option: HeaderValueOption) -> str:
    """`raw_value`, else `value`."""
    raw = option.header.raw_value
    return raw.decode("utf-8", "replace") if raw else option.header.value


def in_header(half: Half) -> str:
    """The pick in the header, empty when there is none."""
    options = set_by(half, DESTINATION)
    return value(options[-1]) if options else ""


def in_metadata(half: Half) -> str:
    """The pick in the dynamic metadata, empty when there is none."""
    for answer in half.answers:
        namespace = answer.dynamic_metadata.fields.get(LB_NAMESPACE)
        if namespace is not None and DESTINATION in namespace.struct_value.fields:
            return namespace.struct_value.fields[DESTINATION].string_value
    return ""


def completed(half: Half) -> Half:
    """The half. Raises FailedError unless the proxy got all that it waits for."""
    if not half.complete:
        raise FailedError(str(half))
    return half


def routed(half: Half) -> str:
    """The pick, wherever it stands. Raises FailedError when there is none, or the request could not be sent on."""
    completed(half)
    picked = in_header(half) or in_metadata(half)
    if not picked:
        raise FailedError(f"{half}; no endpoint in them")
    return picked


def first(picked: str) -> str:
    """The first endpoint of a list, in its one form. Raises FailedError when it is no `ip:port`."""
    try:
        return address.endpoint(picked.split(",")[0].strip())
    except address.AddressError as error:
        raise FailedError(f"the pick is {error}") from None


def refused(half: Half, status: int) -> None:
    """Raises FailedError unless the half ended with an ImmediateResponse of that status."""
    if half.immediate is None:
        picked = in_header(half) or in_metadata(half)
        raise FailedError(f"{half}" + (f"; picked {picked}" if picked else ""))
    if half.immediate.status.code != status:
        raise FailedError(str(half))


def worker_headers(request: HttpRequest, half: Half) -> dict[str, list[bytes]]:
    """The request's headers as the worker gets them, names in lower case.

    As Envoy does: removals first; append actions 0, 2 and 3 replace (measured on Envoy 1.40), ADD_IF_ABSENT does not.
    """
    headers: dict[str, list[bytes]] = {}
    for name, content in request.headers:
        headers.setdefault(name.lower(), []).append(content)
    for mutation in _mutations(half.answers):
        for name in mutation.remove_headers:
            headers.pop(name.lower(), None)
        for option in mutation.set_headers:
            name = option.header.key.lower()
            if option.append_action != HeaderValueOption.ADD_IF_ABSENT or name not in headers:
                headers[name] = [option.header.raw_value or option.header.value.encode()]
    return headers


def _mutations(answers: Iterable[ProcessingResponse]) -> Iterable[HeaderMutation]:
    for answer in answers:
        if kind(answer) == "request_headers":
            yield answer.request_headers.response.header_mutation
        elif kind(answer) == "request_body":
            yield answer.request_body.response.header_mutation
