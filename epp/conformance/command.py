"""`epp conformance`: check any Endpoint Picker over the wire."""

import argparse
import asyncio
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from epp.conformance import address
from epp.conformance.check import Check, Result
from epp.conformance.checks import ALL
from epp.conformance.lab import Described
from epp.conformance.report.ctrf import ctrf
from epp.conformance.report.junit import junit
from epp.conformance.report.results import report
from epp.conformance.report.table import show, show_checks
from epp.conformance.run import Plan, passed, run_checks
from epp.conformance.stream import Limits
from epp.conformance.target import Credentials, Security, UnreachableError


class _UsageError(Exception):
    """The user's mistake; the text names the option and what was expected."""


def run(arguments: argparse.Namespace) -> int:
    """Check the target; 0 when every MUST that was tried holds, 1 when one fails, 2 bad input, 3 undecided."""
    try:
        checks = _chosen(arguments.only or ["*"])
        if arguments.list:
            show_checks(checks, Console())
            return 0
        plan = _plan(arguments)
    except (_UsageError, address.AddressError) as error:
        return _complain(2, str(error))
    try:
        results = asyncio.run(_run(plan, checks))
    except UnreachableError as error:
        return _complain(3, f"{arguments.target}: {error}")
    try:
        _report(arguments, results)
    except OSError as error:
        return _complain(2, f"{error.filename}: {error.strerror}")
    return {True: 0, False: 1, None: 3}[passed(results)]


def _chosen(patterns: Sequence[str]) -> list[Check]:
    for pattern in patterns:
        if not fnmatch.filter([check.name for check in ALL], pattern):
            raise _UsageError(f"--only {pattern}: no such check; `epp conformance --list` names them all")
    return [check for check in ALL if any(fnmatch.fnmatchcase(check.name, pattern) for pattern in patterns)]


def _plan(arguments: argparse.Namespace) -> Plan:
    if not arguments.target:
        raise _UsageError("TARGET is missing: expected host:port of the picker's ext_proc service")
    if not 0 < arguments.timeout <= 600:
        raise _UsageError(f"--timeout {arguments.timeout:g}: expected seconds, over 0 and up to 600")
    if arguments.empty and arguments.endpoint:
        raise _UsageError("--empty and --endpoint: an empty pool has no endpoints")
    return Plan(
        target=address.target(arguments.target),
        health=address.target(arguments.health) if arguments.health else None,
        credentials=_credentials(arguments),
        described=Described(
            endpoints=tuple(address.endpoint(endpoint) for endpoint in arguments.endpoint),
            model=arguments.model,
            empty=arguments.empty,
            hooks=arguments.hooks,
        ),
        limits=Limits(seconds=arguments.timeout, check_seconds=12 * arguments.timeout),
    )


def _credentials(arguments: argparse.Namespace) -> Credentials:
    if (arguments.cert is None) != (arguments.key is None):
        raise _UsageError("--cert and --key: expected both or none")
    for option in ("ca", "cert", "key"):
        path: Path | None = getattr(arguments, option)
        if path is not None and not path.is_file():
            raise _UsageError(f"--{option} {path}: no such file")
    return Credentials(
        security=Security(arguments.security),
        ca=arguments.ca,
        certificate=arguments.cert,
        key=arguments.key,
        server_name=arguments.server_name,
    )


async def _run(plan: Plan, checks: Sequence[Check]) -> list[Result]:
    """Run the checks, with the name of the one at work on a terminal's stderr."""
    console = Console(stderr=True)
    with console.status("connecting") as status:
        return await run_checks(
            plan, checks, told=lambda result: status.update(f"{result.check.name}: {result.verdict}")
        )


def _report(arguments: argparse.Namespace, results: Sequence[Result]) -> None:
    target: str = arguments.target
    made = report(target, results)
    if arguments.ctrf:
        arguments.ctrf.write_bytes(ctrf(made) + b"\n")
    if arguments.junit:
        arguments.junit.write_bytes(junit(made))
    if arguments.json:
        sys.stdout.buffer.write(ctrf(made) + b"\n")
    else:
        show(target, results, Console())


def _complain(code: int, text: str) -> int:
    print(f"epp: {text}", file=sys.stderr)  # noqa: T201 - a command speaks to a person
    return code
