"""The answer that carries a pick: the destination in header and metadata, client-set routing headers gone."""

from collections.abc import Collection

from epp._pb.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingResponse,
)
from epp.extproc import wire
from epp.extproc.hygiene import Names, removed_headers
from epp.extproc.refusal import header
from epp.extproc.wire import Place
from epp.scheduling.explain_header import ANSWERING_HEADER
from epp.scheduling.scheduler import Decision

_MAX_KEPT = 4096

Headers = tuple[tuple[str, str], ...]


class PickAnswers:
    """Serialises pick answers; one for each endpoint and place is kept, as most requests repeat it.

    With `echo_served` the workers of the Gateway's conformance suite are told to name themselves in their answers.
    """

    def __init__(self, names: Names, *, trusted: Collection[str] = (), echo_served: bool = False) -> None:
        self._names = names
        self._removed = removed_headers(names, trusted)
        self._echo_served = echo_served
        self._kept: dict[tuple[Place, str, Headers], bytes] = {}

    def at(self, place: Place, decision: Decision) -> bytes:
        """The pick as the answer to the request's headers, its buffered body, or (metadata only) its trailers."""
        destination = _destination(decision)
        key = (place, destination, decision.set_headers)
        answer = self._kept.get(key)
        if answer is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            answer = self._serialise(place, destination, decision.set_headers) + self._metadata(destination)
            self._kept[key] = answer
        return answer

    def on_changed_body(self, decision: Decision, body: bytes) -> bytes:
        """The pick as the answer to a buffered body that `body` replaces, with the length that Envoy insists on."""
        destination = _destination(decision)
        common = self._mutation(destination, (*decision.set_headers, ("content-length", str(len(body)))))
        common.body_mutation.CopyFrom(BodyMutation(body=body))
        answer = ProcessingResponse(request_body=BodyResponse(response=common))
        return answer.SerializeToString() + self._metadata(destination)

    def metadata(self, decision: Decision) -> bytes:
        """The pick as metadata alone: appended to any serialised answer, it becomes a part of it."""
        return self._metadata(_destination(decision))

    def _metadata(self, destination: str) -> bytes:
        answer = ProcessingResponse()
        answer.dynamic_metadata.update({self._names.destination_namespace: {self._names.destination: destination}})
        return answer.SerializeToString()

    def _serialise(self, place: Place, destination: str, set_headers: Headers) -> bytes:
        common = self._mutation(destination, set_headers)
        if place is Place.REQUEST_HEADERS:
            return ProcessingResponse(request_headers=HeadersResponse(response=common)).SerializeToString()
        if place is Place.REQUEST_BODY:
            return ProcessingResponse(request_body=BodyResponse(response=common)).SerializeToString()
        return wire.OK[place]

    def _mutation(self, destination: str, set_headers: Headers) -> CommonResponse:
        headers = {**dict(set_headers), self._names.destination: destination}
        if self._echo_served:
            headers["x-echo-set-header"] = f"x-conformance-test-served-endpoint:{destination}"
        return CommonResponse(
            header_mutation=HeaderMutation(
                set_headers=[header(name, value) for name, value in headers.items()],
                remove_headers=[name for name in self._removed if name not in headers],
            ),
            clear_route_cache=True,
        )


def _destination(decision: Decision) -> str:
    if not decision.fallbacks:
        return decision.endpoint.host_port
    return ",".join([decision.endpoint.host_port, *(endpoint.host_port for endpoint in decision.fallbacks)])


def explained(explanation: str) -> bytes:
    """The answer to response headers that tells the client why its request went where it went."""
    mutation = HeaderMutation(set_headers=[header(ANSWERING_HEADER, explanation)])
    return ProcessingResponse(
        response_headers=HeadersResponse(response=CommonResponse(header_mutation=mutation))
    ).SerializeToString()


def served_echo(served: str) -> bytes:
    """The answer to response headers that the conformance suite looks for: who answered, as the gateway says."""
    text = served or "fail: missing destination endpoint served metadata"
    headers = {"x-conformance-test-served-endpoint": text, "x-went-into-resp-headers": "true"}
    mutation = HeaderMutation(set_headers=[header(name, value) for name, value in headers.items()])
    common = CommonResponse(header_mutation=mutation)
    return ProcessingResponse(response_headers=HeadersResponse(response=common)).SerializeToString()
