"""`epp status`: ask a running EPP how it is."""

import argparse
import sys
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL

import msgspec
from rich.console import Console
from rich.table import Table

from epp.admin.status import Status, decode
from epp.peers.status import PeerStatus

TIMEOUT_SECONDS = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 0 when the EPP is ready, 1 when it is not, 2 for a bad URL, 3 when it cannot be asked."""
    if not arguments.url.startswith(("http://", "https://")):
        return _complain(2, f"--url {arguments.url}: expected http://HOST:PORT")
    url = arguments.url.rstrip("/") + "/status"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
            document = answer.read()
        status = decode(document)
    except InvalidURL as error:
        return _complain(2, f"--url {arguments.url}: {error}")
    except urllib.error.HTTPError as error:
        error.close()
        return _complain(3, f"{url}: no status of an EPP: {error}")
    except msgspec.DecodeError as error:
        return _complain(3, f"{url}: no status of an EPP: {error}")
    except (OSError, HTTPException) as error:
        return _complain(3, f"{url}: {error}; is `epp serve` running?")
    if arguments.json:
        sys.stdout.buffer.write(document + b"\n")
    else:
        _print(status, Console())
    return 0 if status.process.ready else 1


def _complain(code: int, text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - a command speaks to a person
    return code


def _print(status: Status, console: Console) -> None:
    process = status.process
    state = "ready" if process.ready else "not ready"
    waiting = f", waiting for {', '.join(process.waiting_for)}" if process.waiting_for else ""
    console.print(f"epp {process.version}, up {process.uptime_seconds:.0f} s, {state}{waiting}")
    console.print(_sources(status), _endpoints(status), _models(status), *_peers(status), _settings(status))


def _sources(status: Status) -> Table:
    table = Table("source", "last seen", "failures", "state", title="where endpoints come from")
    for source in status.discovery.sources:
        seen = "never" if source.seconds_since_seen is None else f"{source.seconds_since_seen:.1f} s ago"
        state = source.error or ("fine" if source.listed else "not listed yet")
        table.add_row(source.name, seen, str(source.failures), state)
    return table


def _endpoints(status: Status) -> Table:
    count = len(status.pool.endpoints)
    table = Table("endpoint", "address", "roles", "rank", "engine", "state", title=f"{count} endpoints")
    for endpoint in status.pool.endpoints:
        state = "suspended: does not answer" if endpoint.host_port in status.suspects.suspended else "fine"
        roles = " ".join(endpoint.roles)
        table.add_row(endpoint.name, endpoint.host_port, roles, str(endpoint.rank), endpoint.engine, state)
    return table


def _models(status: Status) -> Table:
    table = Table("models", "tokenizer", "state", title="where token ids come from")
    for model in status.prompts.models:
        state = model.problem or ("fine" if model.chat_template else "no chat template: chats are compared as text")
        table.add_row(" ".join(model.names) or "all", model.origin, state)
    if not status.prompts.models:
        table.add_row("all", "none", "prefixes are compared as text")
    return table


def _peers(status: Status) -> list[Table]:
    peers = status.peers
    if not peers.enabled:
        return []
    state = peers.problem or "load is shared"
    table = Table("peer", "address", "version", "heard", "lag", "requests", "lost", "state", title=f"peers: {state}")
    for peer in peers.peers:
        heard = "never" if peer.seconds_since_heard is None else f"{peer.seconds_since_heard:.1f} s ago"
        lag = "" if peer.lag_seconds is None else f"{peer.lag_seconds * 1000:.1f} ms"
        version = f"{peer.epp} (v{peer.message_version})" if peer.epp else ""
        name = peer.name or "unknown"
        table.add_row(
            name, peer.address, version, heard, lag, str(peer.reservations), str(peer.lost), _peer_state(peer)
        )
    return [table]


def _peer_state(peer: PeerStatus) -> str:
    if not peer.present:
        return "silent: its load does not count here"
    if not peer.hears_us:
        return "does not hear us"
    return "in step" if peer.in_step else "catching up"


def _settings(status: Status) -> Table:
    table = Table("setting", "value", title="settings in force")
    for name, value in status.settings.items():
        table.add_row(name, value)
    return table
