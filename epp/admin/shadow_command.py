"""`epp shadow --report`: what a running `epp shadow` has found, and how it is printed."""

import argparse
import sys
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL

import msgspec
from rich.console import Console
from rich.table import Table

from epp.admin.command import TIMEOUT_SECONDS
from epp.admin.status import decode
from epp.scheduling.comparison import ComparisonReport
from epp.settings import SettingsError


def report(arguments: argparse.Namespace) -> int:
    """Ask the EPP at --url; 0 when something was compared, 1 when nothing was, 3 when it cannot be asked."""
    if not arguments.url.startswith(("http://", "https://")):
        raise SettingsError(f"--url {arguments.url}: expected http://HOST:PORT")
    url = arguments.url.rstrip("/") + "/status"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
            found = decode(answer.read()).comparison
    except InvalidURL as error:
        raise SettingsError(f"--url {arguments.url}: {error}") from None
    except (OSError, HTTPException, msgspec.DecodeError) as error:
        print(f"epp: {url}: {error}; is `epp shadow` running?", file=sys.stderr)  # noqa: T201 - speaks to a person
        return 3
    if found is None:
        print(f"epp: {url}: this is an `epp serve`, not an `epp shadow`", file=sys.stderr)  # noqa: T201
        return 3
    show(found, as_json=arguments.json)
    return 0 if found.compared else 1


def show(found: ComparisonReport, *, as_json: bool) -> None:
    """The report on stdout."""
    if as_json:
        document = {**msgspec.to_builtins(found), "verdict": found.verdict}
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.flush()
        return
    table = Table("what", "value", title=found.verdict)
    for what, value in _rows(found):
        table.add_row(what, value)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _rows(found: ComparisonReport) -> list[tuple[str, str]]:
    rows = [("requests compared", f"{found.compared}, of which {found.same} would have gone to the same endpoint")]
    rows += [(f"left out: {reason}", str(count)) for reason, count in found.left_out.items()]
    if not found.compared:
        return rows
    reported = found.reported_cached_tokens
    rows += [
        ("predicted TTFT where they went", f"{found.served_ttft:.4f} s"),
        ("predicted TTFT where we would send them", f"{found.our_ttft:.4f} s"),
        ("predicted gain for a request", f"{found.gain:.4f} s, standard error {found.gain_error:.4f}"),
        ("cached tokens where they went", f"{found.served_cached_tokens:.1f}"),
        ("cached tokens where we would send them", f"{found.our_cached_tokens:.1f}"),
        ("cached tokens reported by the engines", "not told" if reported is None else f"{reported:.1f}"),
    ]
    if (seen := found.calibration) is not None:
        rows += [
            ("observed TTFT", f"{seen.observed_mean:.4f} s, {seen.requests} streamed answers"),
            ("observed less predicted", f"{seen.bias:+.4f} s on average"),
            ("predictions are off by", f"{seen.error_p50:.4f} s (half), {seen.error_p90:.4f} s (9 in 10)"),
        ]
    return rows
