"""Proves that protos/ can still be read by what main generates. Run: `python -m tests.protocol.breaking`."""

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Compare protos/ with those of the branch main, or of origin/main; without either there is nothing to compare."""
    for branch in ("main", "origin/main"):
        archive = subprocess.run(["git", "archive", branch, "protos", "buf.yaml"], cwd=ROOT, capture_output=True)
        if archive.returncode == 0:
            with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive.stdout)) as protos:
                protos.extractall(folder, filter="data")
                return subprocess.run(["buf", "breaking", "--against", folder], cwd=ROOT).returncode
    print("no branch main: nothing to compare protos/ with", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
