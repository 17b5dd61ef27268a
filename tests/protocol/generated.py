"""Proves that the checked-in protobuf code is what protos/ generates. Run: `python -m tests.protocol.generated`."""

import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Generate into a temporary folder and compare file by file."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["buf", "generate", "--output", folder], cwd=ROOT, check=True)
        fresh = Path(folder, "epp", "_pb")
        names = sorted(path.name for path in fresh.iterdir())
        checked_in = sorted(path.name for path in (ROOT / "epp" / "_pb").glob("*_pb2.py*"))
        _, differing, missing = filecmp.cmpfiles(fresh, ROOT / "epp" / "_pb", names, shallow=False)
        stale = sorted({*differing, *missing, *(set(checked_in) - set(names))})
    if stale:
        print(f"epp/_pb differs from protos/: {', '.join(stale)}; run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
