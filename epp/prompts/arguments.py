"""Arguments of `epp tokens`."""

import argparse

EXAMPLE = (
    "  EPP_TOKENIZER_PATH=/models/llama epp tokens request.json\n"
    "  EPP_TOKENIZER_PATH=/models/llama epp tokens request.json --compare http://worker:8000"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `epp tokens` takes."""
    parser.add_argument("body", help="file with a request's body; - for standard input")
    parser.add_argument("--path", default="", help="path of the request; default: told from the body")
    parser.add_argument("--compare", metavar="URL", help="base URL of an engine whose token ids to compare with")
    parser.add_argument("--json", action="store_true", help="as JSON")
