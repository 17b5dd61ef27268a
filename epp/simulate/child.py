"""Child processes that end with their parent, whatever ends it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Runs in the child before the command replaces it: 1 is PR_SET_PDEATHSIG, which survives exec.
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvpe(sys.argv[2], sys.argv[2:], os.environ)\n"
)


@contextlib.contextmanager
def child(
    command: Sequence[str],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    stop_seconds: float = 5.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` inside the block: output goes to `log`; SIGTERM at the end, SIGKILL after `stop_seconds`.

    Call it from the main thread: Linux counts the thread that started a child as its parent.
    """
    process = start_child(command, log=log, environ=environ)
    try:
        yield process
    finally:
        stop_child(process, stop_seconds)


def start_child(
    command: Sequence[str], *, log: Path, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` in `folder`; the kernel kills it should this process die."""
    wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - commands come from our own code
            wrapper, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=folder
        )


def stop_child(process: subprocess.Popen[bytes], seconds: float = 5.0) -> int:
    """End `process`, politely first; returns its exit status (negative: the signal that ended it)."""
    process.terminate()
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
