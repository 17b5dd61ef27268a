"""The arguments of `epp simulate engine`; light to import, so that `epp --help` is quick."""

import argparse
from pathlib import Path

EXAMPLE = "  epp simulate engine --tokenizer /models/my-model --port 8000 --events-port 5557 --replay-port 5558"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the simulated worker is like."""
    model = parser.add_argument_group("model")
    model.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json and the chat template")
    model.add_argument("--chat-template", type=Path, help="template file; default: the one in the folder")
    model.add_argument("--model", default="simulated", help="served model name")
    model.add_argument("--lora", action="append", default=[], help="name of an adapter that is served too")
    speed = parser.add_argument_group("size and speed")
    speed.add_argument("--blocks", type=_positive_int, default=4096, help="KV blocks in the cache")
    speed.add_argument("--block-size", type=_positive_int, default=16, help="tokens per block")
    speed.add_argument("--prefill-tokens-per-second", type=_positive_float, default=8000.0, help="of uncached tokens")
    speed.add_argument("--step-tokens", type=_positive_int, default=2048, help="uncached tokens computed together")
    speed.add_argument("--inter-token-ms", type=float, default=20.0, help="time from one answer token to the next")
    speed.add_argument("--stream-interval", type=_positive_int, default=1, help="tokens per streamed chunk")
    network = parser.add_argument_group("network (port 0: chosen by the system; the first line on stdout tells)")
    network.add_argument("--host", default="127.0.0.1", help="address to listen on")
    network.add_argument("--port", type=int, default=8000, help="HTTP port")
    network.add_argument("--events-port", type=int, help="ZMQ port of KV events; default: no events")
    network.add_argument("--replay-port", type=int, help="ZMQ port that sends past events again; default: none")
    network.add_argument("--topic", default="", help="topic of events")
    network.add_argument("--events-form", choices=("map", "array"), default="map", help="vLLM since 0.24, or before")
    network.add_argument("--replay-frames", type=int, choices=(3, 4), default=4, help="3: vLLM before 0.26")
    network.add_argument("--buffer-steps", type=_positive_int, default=10_000, help="batches kept for replay")
    network.add_argument("--rank", type=int, default=0, help="data-parallel rank")
    other = parser.add_argument_group("other")
    kinds = ("none", "dynamo", "llm-d")
    other.add_argument("--sidecar", choices=kinds, default="none", help="imitate a sidecar: its demands, its prefills")
    other.add_argument("--instance-id", type=int, help="dynamo: the only worker id that is known; default: any number")
    other.add_argument(
        "--prefill-worker",
        type=_prefill_worker,
        action="append",
        default=[],
        metavar="ID=HOST:PORT",
        help="dynamo: a prefill worker; requests must then name one",
    )
    other.add_argument("--debug", action="store_true", help="serve /debug/cache, the true content of the cache")


def _positive_int(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return number


def _positive_float(value: str) -> float:
    number = float(value)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{value}: must be above 0")
    return number


def _prefill_worker(value: str) -> tuple[int, str]:
    number, equals, place = value.partition("=")
    if not (number.isdecimal() and equals and ":" in place):
        raise argparse.ArgumentTypeError(f"{value}: expected ID=HOST:PORT")
    return int(number), place
