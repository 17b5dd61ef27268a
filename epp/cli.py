"""The commands; nothing else."""

import argparse
import sys

from epp import __version__
from epp.settings import SettingsError, load_settings


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fine, 1 the answer is no, 2 bad input, 3 could not start."""
    parser = argparse.ArgumentParser(prog="epp", description="Endpoint Picker for the Gateway API Inference Extension")
    parser.add_argument("--version", action="version", version=f"epp {__version__}")
    parser.parse_args(argv)
    try:
        load_settings()
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command speaks to a person
        return 2
    return 0
