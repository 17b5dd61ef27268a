"""The options of `epp conformance`; apart, so that other commands need not load gRPC."""

import argparse
from pathlib import Path

EXAMPLE = """\
  epp conformance 127.0.0.1:9002 --health 127.0.0.1:9003 --endpoint 10.0.0.1:8000 --endpoint 10.0.0.2:8000
  epp conformance epp.default.svc:9002 --tls --junit report.xml --only 'request.*'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp conformance`."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help="host:port of the picker's ext_proc service")
    parser.add_argument("--list", action="store_true", help="list the checks and where their rules come from")
    pool = parser.add_argument_group("what the target has")
    pool.add_argument(
        "--endpoint", metavar="IP:PORT", action="append", default=[], help="an endpoint of its pool; repeat for all"
    )
    pool.add_argument("--health", metavar="HOST:PORT", help="its gRPC health service, plain text (default: at TARGET)")
    pool.add_argument("--model", default="conformance", help="a model that its pool serves (default: %(default)s)")
    pool.add_argument("--empty", action="store_true", help="its pool is empty: check how it refuses")
    pool.add_argument("--hooks", action="store_true", help="the Gateway conformance suite's test hooks are on")
    _add_tls(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--only", metavar="PATTERN", action="append", help="checks to run, as 'pick.*'; may be repeated")
    how.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="wait per answer (default: 5)")
    how.add_argument("--json", action="store_true", help="print the CTRF report instead of the table")
    how.add_argument("--ctrf", metavar="FILE", type=Path, help="write the CTRF report")
    how.add_argument("--junit", metavar="FILE", type=Path, help="write a JUnit report")


def _add_tls(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection (default: TLS if the target speaks it, unverified as by gateways)")
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--tls", help="speak TLS or fail", dest="security", action="store_const", const="tls", default="auto"
    )
    form.add_argument("--plaintext", help="speak plain text", dest="security", action="store_const", const="plaintext")
    group.add_argument("--ca", metavar="FILE", type=Path, help="verify the target by these authorities (PEM)")
    group.add_argument("--cert", metavar="FILE", type=Path, help="client certificate (PEM)")
    group.add_argument("--key", metavar="FILE", type=Path, help="its key (PEM)")
    group.add_argument("--server-name", metavar="NAME", help="name that the target's certificate must have")
