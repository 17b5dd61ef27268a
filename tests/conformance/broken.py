"""Ways to break a correct picker."""

import grpc

from epp._pb.external_processor_pb2 import (
    ProcessingRequest,
    ProcessingResponse,
)

from .correct import DESTINATION, Answers, CloseError, Exchange, Fault, option


def kind(message: ProcessingRequest | ProcessingResponse) -> str:
    return message.WhichOneof("request" if isinstance(message, ProcessingRequest) else "response") or ""


def picks(answers: Answers) -> list[ProcessingResponse]:
    """The answers that carry a pick."""
    return [answer for answer in answers if kind(answer) != "immediate_response" and answer.dynamic_metadata.fields]


def destination(answer: ProcessingResponse):
    """The option that sets the destination header."""
    half = getattr(answer, kind(answer))
    return next(o for o in half.response.header_mutation.set_headers if o.header.key == DESTINATION)


def mutation(answer: ProcessingResponse):
    return getattr(answer, kind(answer)).response.header_mutation


def name_instead(answer: ProcessingResponse, endpoint: str) -> None:
    destination(answer).header.raw_value = endpoint.encode()
    answer.dynamic_metadata.update({"envoy.lb": {DESTINATION: endpoint}})


def each_pick(change):
    """A fault that changes each pick in place."""

    def answers(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
        for answer in picks(answers):
            change(exchange, answer)
        return answers

    return Fault(answers=answers)


def when(condition, *, instead):
    """A fault that answers something else to some messages."""

    def answers(exchange: Exchange, message: ProcessingRequest, answers: Answers) -> Answers:
        return instead(exchange, message, answers) if condition(exchange, message) else answers

    return Fault(answers=answers)


def close(code: grpc.StatusCode):
    def answers(*_: object) -> Answers:
        raise CloseError(code)

    return answers


def silence(*_: object) -> Answers:
    return []


def is_(*kinds: str):
    return lambda _exchange, message: kind(message) in kinds


def without(*kinds: str):
    """A fault that leaves out answers of some kinds."""
    return Fault(answers=lambda _exchange, _message, answers: [a for a in answers if kind(a) not in kinds])


def of_body(change, place: str):
    """A fault that changes the answers to body messages of one half."""

    def answers(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
        bodies = [answer for answer in answers if kind(answer) == place]
        others = [answer for answer in answers if kind(answer) != place]
        return others + change(bodies) if bodies else answers

    return Fault(answers=answers)


def streamed(answer: ProcessingResponse):
    return getattr(answer, kind(answer)).response.body_mutation.streamed_response


def internal_for_refusals(_exchange: Exchange, _message: ProcessingRequest, answers: Answers) -> Answers:
    """As lwepp: a gRPC error where the protocol wants a 503."""
    if any(kind(answer) == "immediate_response" for answer in answers):
        raise CloseError(grpc.StatusCode.INTERNAL)
    return answers


def sets(name: str, value: str):
    """A fault that sets one more header on the request."""
    return each_pick(lambda _exchange, answer: mutation(answer).set_headers.append(option(name, value)))
