"""One HTTP request and its response as a gateway shows them in observability mode, where nothing is answered.

Sans-IO: serialised messages in; what they show is in the attributes.
"""

from google.protobuf.message import DecodeError

from epp._pb.external_processor_pb2 import ProcessingRequest
from epp.endpoints.endpoint import HostPort
from epp.extproc.body import Budget, HeldBody
from epp.extproc.exchange import ProtocolError
from epp.extproc.hygiene import Names
from epp.extproc.metadata import Headers, listed, plain_host
from epp.extproc.response import ResponseWatch

_UPSTREAM = "upstream.address"
"""Attribute of the worker that the gateway connected to, where its filter lists it in `response_attributes`."""


class Watched:
    """Takes messages; a chunk that the gateway leaves out, by its body mode, is simply not known."""

    def __init__(self, names: Names, budget: Budget, max_body_bytes: int) -> None:
        self.headers = Headers()
        self.held = HeldBody(budget, max_body_bytes)
        self.subset: tuple[str, ...] | None = None
        self.response = ResponseWatch()
        self.asked = False
        """The request is as complete as it will be shown."""
        self.ended = False
        self.shows_body = False
        """Whether a byte of the response was shown."""
        self._names = names
        self._destination = ""

    @property
    def served(self) -> HostPort | None:
        """Where the request was sent, as far as is known."""
        found = self.response.served or self._destination
        return HostPort(plain_host(found)) if found else None

    def get(self, name: str) -> str:
        """A request header's value, empty when absent."""
        return self.headers.get(name)

    def receive(self, message: bytes) -> None:
        """Take the next message.

        Raises ProtocolError for what is no ext_proc message, and for a gateway that waits for answers.
        """
        try:
            request = ProcessingRequest.FromString(message)
        except DecodeError:
            raise ProtocolError("not an ext_proc ProcessingRequest") from None
        if not request.observability_mode:
            raise ProtocolError("epp shadow answers nothing: set observability_mode on the gateway's ext_proc filter")
        kind = request.WhichOneof("request")
        if kind is None:
            return
        if kind.startswith("response"):
            self._respond(kind, request)
        elif not self.asked:
            self._ask(kind, request)

    def close(self) -> None:
        """Let go of the body."""
        self.held.forget()

    def _ask(self, kind: str, request: ProcessingRequest) -> None:
        if kind == "request_headers":
            names = self._names
            self.headers = Headers(request.request_headers.headers)
            self.subset = listed(request, names.subset_namespace, names.subset)
            self._destination = self.get(names.destination).split(",")[0].strip() or _first(
                request, names.destination_namespace, names.destination
            )
            self.asked = request.request_headers.end_of_stream
        elif kind == "request_body":
            self.held.keep(request.request_body.body)
            self.asked = request.request_body.end_of_stream or self.held.full
        else:
            self.asked = True

    def _respond(self, kind: str, request: ProcessingRequest) -> None:
        self.asked = True
        if kind == "response_headers":
            names = self._names
            served = _first(request, names.served_namespace, names.served) or _upstream(request)
            self.response.headers(Headers(request.response_headers.headers), served=served)
            self.ended = request.response_headers.end_of_stream
        elif kind == "response_body":
            self.shows_body = True
            self.response.body(request.response_body.body)
            self.ended = request.response_body.end_of_stream
        else:
            self.ended = True


def _first(request: ProcessingRequest, namespace: str, key: str) -> str:
    entries = listed(request, namespace, key)
    return entries[-1] if entries and namespace and key else ""


def _upstream(request: ProcessingRequest) -> str:
    for attributes in request.attributes.values():
        if _UPSTREAM in attributes.fields:
            return attributes.fields[_UPSTREAM].string_value
    return ""
