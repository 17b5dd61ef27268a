"""The answer that carries a pick: the destination in header and metadata, client-set routing headers gone."""

from epp._pb.external_processor_pb2 import (
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingResponse,
)
from epp.extproc import wire
from epp.extproc.hygiene import DESTINATION, LB_NAMESPACE, REMOVED_HEADERS
from epp.extproc.refusal import header
from epp.extproc.wire import Place
from epp.scheduling.scheduler import Decision

_MAX_KEPT = 4096


class PickAnswers:
    """Serialises pick answers; one for each endpoint and place is kept, as most requests repeat it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Place, str, tuple[tuple[str, str], ...]], bytes] = {}

    def at(self, place: Place, decision: Decision) -> bytes:
        """The pick as the answer to the request's headers, its buffered body, or (metadata only) its trailers."""
        destination = _destination(decision)
        key = (place, destination, decision.set_headers)
        answer = self._kept.get(key)
        if answer is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            answer = self._kept[key] = _mutation(place, destination, decision.set_headers) + _metadata(destination)
        return answer

    def metadata(self, decision: Decision) -> bytes:
        """The pick as metadata alone: appended to any serialised answer, it becomes a part of it."""
        return _metadata(_destination(decision))


def _destination(decision: Decision) -> str:
    return ",".join([decision.endpoint.host_port, *(endpoint.host_port for endpoint in decision.fallbacks)])


def _metadata(destination: str) -> bytes:
    response = ProcessingResponse()
    response.dynamic_metadata.update({LB_NAMESPACE: {DESTINATION: destination}})
    return response.SerializeToString()


def _mutation(place: Place, destination: str, set_headers: tuple[tuple[str, str], ...]) -> bytes:
    headers = {**dict(set_headers), DESTINATION: destination}
    common = CommonResponse(
        header_mutation=HeaderMutation(
            set_headers=[header(name, value) for name, value in headers.items()],
            remove_headers=[name for name in REMOVED_HEADERS if name not in headers],
        ),
        clear_route_cache=True,
    )
    if place is Place.REQUEST_HEADERS:
        return ProcessingResponse(request_headers=HeadersResponse(response=common)).SerializeToString()
    if place is Place.REQUEST_BODY:
        return ProcessingResponse(request_body=BodyResponse(response=common)).SerializeToString()
    return wire.OK[place]
