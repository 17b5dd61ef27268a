"""`epp explain`: why requests went where they went, and where another policy would have sent them."""

import argparse
import random
import sys
import urllib.error
import urllib.request
from http.client import HTTPException

import msgspec
from rich.console import Console
from rich.table import Table

from epp.scheduling.explain import DecisionRecord, decide_again
from epp.scheduling.policies import policy_from
from epp.scheduling.policy import Policy
from epp.settings import SettingsError, load_settings

_TIMEOUT_SECONDS = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Print decisions; 0 when there is one, 1 when there is none that fits, 3 when they cannot be had."""
    try:
        document = _document(arguments)
        records = msgspec.json.decode(document, type=list[DecisionRecord])
    except (OSError, HTTPException, ValueError) as error:
        source = arguments.file or arguments.url
        print(f"epp: {source}: no decisions: {error}", file=sys.stderr)  # noqa: T201 - a command speaks to a person
        return 2 if arguments.file else 3
    if arguments.request_id:
        records = [record for record in records if record.request_id == arguments.request_id]
    records = records[: arguments.last]
    if not records:
        print("epp: no such decision is kept", file=sys.stderr)  # noqa: T201
        return 1
    try:
        others = [] if arguments.policy is None else [_again(record, arguments.policy) for record in records]
    except ValueError as error:
        print(f"epp: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(others or records) + b"\n")
    else:
        for i, record in enumerate(records):
            _print(record, others[i] if others else None)
    return 0


def _document(arguments: argparse.Namespace) -> bytes:
    if arguments.file is not None:
        return bytes(arguments.file.read_bytes())
    if not arguments.url.startswith(("http://", "https://")):
        raise SettingsError(f"--url {arguments.url}: expected http://HOST:PORT")
    url = arguments.url.rstrip("/") + "/decisions"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
        return bytes(answer.read())


def _again(record: DecisionRecord, name: str) -> DecisionRecord:
    settings = load_settings().model_copy(update={"policy": name, "scorers": None, "config_file": None})
    policy: Policy = policy_from(settings, random.Random(0))  # noqa: S311 - the same answer each time
    return decide_again(record, policy)


def _print(record: DecisionRecord, other: DecisionRecord | None) -> None:
    title = f"{record.request_id or 'a request'}: {record.chosen}, {record.reason} ({record.policy})"
    if other is not None:
        title += f"; {other.policy}: {other.chosen}"
    table = Table(title=title, caption=f"{record.prompt_tokens} prompt tokens, model {record.model or 'not known'}")
    for heading in ("", "endpoint", "cost", "cached", "sure", "wait s", "work s", "in flight", "queued", "kv used"):
        table.add_column(heading, justify="left" if heading in ("", "endpoint") else "right")
    for row in sorted(record.candidates, key=lambda row: (row.cost is None, row.cost or 0.0)):
        mark = ("*" if row.name == record.chosen else "") + ("o" if other and row.name == other.chosen else "")
        sure = "-" if row.confidence is None else f"{row.confidence:.0%}"
        numbers = (
            f"{row.cached_tokens}",
            sure,
            _short(row.wait_seconds),
            _short(row.work_seconds),
            _short(row.in_flight),
        )
        table.add_row(mark, row.name, _short(row.cost), *numbers, _short(row.queued), _short(row.kv_used))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
