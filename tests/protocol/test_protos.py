"""Our trimmed protos say the same as Envoy's own, for every name, number and type that we use."""

import json
import subprocess
import sys
from pathlib import Path

from epp._pb import base_pb2, external_processor_pb2, http_status_pb2, processing_mode_pb2

from .descriptors import described

# Both define messages of the same names, which one process cannot hold: Envoy's are read in another one.
_THEIRS = """
import json
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.type.v3 import http_status_pb2
from tests.protocol.descriptors import described
print(json.dumps(described(base_pb2, processing_mode_pb2, external_processor_pb2, http_status_pb2)))
"""


def test_every_name_number_and_type_is_envoys() -> None:
    ours = described(base_pb2, processing_mode_pb2, external_processor_pb2, http_status_pb2)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _THEIRS],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    assert len(ours) > 60
    missing = {name for name in ours if name not in theirs}
    different = {name: (ours[name], theirs[name]) for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    assert (missing, different) == (set(), {})
