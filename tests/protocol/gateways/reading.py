"""How gateways read a pick."""

from epp._pb.base_pb2 import HeaderValueOption
from epp._pb.external_processor_pb2 import ProcessingResponse

DESTINATION = "x-gateway-destination-endpoint"


def from_header(answer: ProcessingResponse) -> str:
    """As agentgateway, NGINX and the AI Gateway do: `raw_value` of the last matching header, which must overwrite."""
    options = [
        option
        for option in answer.request_headers.response.header_mutation.set_headers
        if option.header.key == DESTINATION
    ]
    assert options[-1].append_action == HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert not options[-1].header.value
    return options[-1].header.raw_value.decode()


def from_metadata(answer: ProcessingResponse) -> str:
    """As Istio does."""
    return str(answer.dynamic_metadata["envoy.lb"][DESTINATION])
