"""The baseline: an ext_proc server that parses and serialises every message as a picker must, and decides nothing.

Same grpcio, event loop, generic handler and number of messages as ours, and the same rule for ending a stream, so a
ratio to it is the price of what we do besides carrying messages. Later changes need a decision record: results are
compared with it across versions.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator

import grpc
import grpc.aio
import uvloop

from epp._pb.external_processor_pb2 import ProcessingRequest, ProcessingResponse, StreamedBodyResponse
from epp._pb.processing_mode_pb2 import ProcessingMode

PIECE = 62_000


class Noop:
    """One stream."""

    def __init__(self) -> None:
        self.over = False
        self._sees_response_body = True

    def answers(self, request: ProcessingRequest) -> Iterator[ProcessingResponse]:
        """What to send for one message."""
        kind = request.WhichOneof("request")
        if kind == "request_headers":
            mode = request.protocol_config.response_body_mode
            self._sees_response_body = mode != ProcessingMode.NONE
            answer = ProcessingResponse()
            answer.request_headers.response.SetInParent()
            yield answer
        elif kind == "request_body":
            for piece in _pieces(request.request_body.body, request.request_body.end_of_stream):
                answer = ProcessingResponse()
                answer.request_body.response.body_mutation.streamed_response.CopyFrom(piece)
                yield answer
        elif kind == "response_headers":
            answer = ProcessingResponse()
            answer.response_headers.response.SetInParent()
            self.over = self._sees_response_body and request.response_headers.end_of_stream
            yield answer
        elif kind == "response_body":
            for piece in _pieces(request.response_body.body, request.response_body.end_of_stream):
                answer = ProcessingResponse()
                answer.response_body.response.body_mutation.streamed_response.CopyFrom(piece)
                yield answer
            self.over = request.response_body.end_of_stream
        elif kind is not None:
            answer = ProcessingResponse()
            getattr(answer, kind).SetInParent()
            self.over = kind == "response_trailers"
            yield answer


def _pieces(body: bytes, end: bool) -> Iterator[StreamedBodyResponse]:
    starts = range(0, len(body), PIECE) or range(1)
    for start in starts:
        last = start + PIECE >= len(body)
        yield StreamedBodyResponse(body=body[start : start + PIECE], end_of_stream=end and last)


async def process(_messages: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
    """Serve one stream."""
    stream = Noop()
    while not stream.over:
        message: object = await context.read()
        if not isinstance(message, bytes):
            return
        for answer in stream.answers(ProcessingRequest.FromString(message)):
            await context.write(answer.SerializeToString())


async def serve(port: int) -> None:
    """Serve until ended; prints the port."""
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", 64 * 1024 * 1024),
            ("grpc.max_send_message_length", 64 * 1024 * 1024),
            ("grpc.so_reuseport", 0),
        )
    )
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(process)
    service = "envoy.service.ext_proc.v3.ExternalProcessor"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Process": handler}),))
    print(f'{{"port": {server.add_insecure_port(f"127.0.0.1:{port}")}}}', flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(serve(parser.parse_args().port)))
