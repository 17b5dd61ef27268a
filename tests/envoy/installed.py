"""What tests do where there is no Envoy."""

import os

import pytest

from epp.simulate.envoy import EnvoyError, find_envoy


def require_envoy() -> None:
    """Without an Envoy the test is skipped, or fails where CI=true."""
    try:
        find_envoy()
    except EnvoyError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
