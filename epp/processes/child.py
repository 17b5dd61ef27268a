"""One of several processes: the whole EPP, but for the ports that its parent answers."""

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

from epp.app import serve
from epp.peers.addresses import Processes
from epp.settings import Settings, SettingsError


def run_child(settings: Settings, processes: Processes, parent: "Connection[bool, bool]") -> None:
    """Serve until SIGTERM, or until the parent is gone; tell the parent when ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent passes on what is meant
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="parent").start()
    try:
        code = serve(settings, processes, on_ready=lambda ready: _tell(parent, ready))
    except SettingsError as error:
        print(f"epp: {error}", file=sys.stderr)  # noqa: T201 - a command speaks to a person
        code = 2
    sys.exit(code)


def _end_with(parent: "Connection[bool, bool]") -> None:
    """The parent says nothing; the end of the line is its end."""
    try:
        parent.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


def _tell(parent: "Connection[bool, bool]", ready: bool) -> None:
    try:
        parent.send(ready)
    except OSError:
        pass
