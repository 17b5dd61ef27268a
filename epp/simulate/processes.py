"""The processes of a chain on one machine: simulated workers and the picker itself, each ready when handed over."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epp.settings import PREFIX
from epp.simulate.child import start_child, stop_child

_START_SECONDS = 100.0
_EPP = (sys.executable, "-m", "epp.cli")


class ProcessError(Exception):
    """A process did not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One running simulated worker."""

    name: str
    port: int
    events_port: int | None
    replay_port: int | None
    process: subprocess.Popen[bytes]

    def entry(self) -> dict[str, object]:
        """Its entry in an endpoints file."""
        entry: dict[str, object] = {"name": self.name, "address": "127.0.0.1", "ports": [self.port]}
        ports = {"events_port": self.events_port, "replay_port": self.replay_port}
        return entry | {name: port for name, port in ports.items() if port is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picker:
    """One running `epp serve`."""

    port: int
    admin_port: int
    metrics_port: int
    health_port: int
    process: subprocess.Popen[bytes]
    log: Path


@contextlib.contextmanager
def running_workers(arguments: Mapping[str, Sequence[str]], folder: Path) -> Iterator[list[Worker]]:
    """Run one simulated worker for each name, with those arguments of `epp simulate engine`; logs go to `folder`.

    Raises ProcessError when one does not start.
    """
    free = ("--port", "0", "--events-port", "0", "--replay-port", "0")
    with contextlib.ExitStack() as stack:
        started = []
        for name, own in arguments.items():
            log = folder / f"{name}.log"
            log.unlink(missing_ok=True)
            process = start_child([*_EPP, "simulate", "engine", *free, *own], log=log)
            stack.callback(stop_child, process)
            started.append((name, process, log))
        workers = []
        for name, process, log in started:
            ports = json.loads(await_line(process, log, '"port": '))
            workers.append(Worker(name=name, process=process, **ports))
        yield workers


@contextlib.contextmanager
def running_picker(
    settings: Mapping[str, str], folder: Path, *, stop_seconds: float = 10.0, command: str = "serve"
) -> Iterator[Picker]:
    """Run `epp serve`, or a command like it, with those EPP_* settings and no others, on free loopback ports.

    Its log goes to `folder`.

    Raises ProcessError when it does not get ready.
    """
    log = folder / ("epp.log" if command == "serve" else f"{command}.log")
    log.unlink(missing_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    ports = {f"{PREFIX}{name}_PORT": "0" for name in ("GRPC", "HEALTH", "METRICS", "ADMIN")}
    plain = {f"{PREFIX}HOST": "127.0.0.1", f"{PREFIX}SECURE_SERVING": "false"}
    environ = {**inherited, **ports, **plain, **settings}
    process = start_child([*_EPP, command], log=log, environ=environ)
    try:
        listening = json.loads(await_line(process, log, '"event": "listening"'))
        await_line(process, log, '"event": "ready"')
        yield Picker(
            port=listening["grpc_port"],
            admin_port=listening["admin_port"],
            metrics_port=listening["metrics_port"],
            health_port=listening["health_port"],
            process=process,
            log=log,
        )
    finally:
        stop_child(process, stop_seconds)


def write_endpoints(workers: Sequence[Worker], file: Path) -> None:
    """An endpoints file for `workers`."""
    file.write_text(json.dumps({"endpoints": [worker.entry() for worker in workers]}))


def await_line(process: subprocess.Popen[bytes], log: Path, text: str) -> str:
    """The first line of `log` that holds `text` and is a whole JSON object.

    Raises ProcessError when the process ends, or says nothing for too long.
    """
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        for line in log.read_text().splitlines():
            if text in line and line.endswith("}"):
                return line
        if ended:
            raise ProcessError(f"{log.stem} ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
    raise ProcessError(f"{log.stem} was not ready after {_START_SECONDS:g} s:\n{log.read_text()[-2000:]}")
