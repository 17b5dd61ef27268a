"""Everything in this folder needs the real Envoy."""

import os

import pytest

from epp.simulate.envoy import EnvoyError, find_envoy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the folder's tests; without an Envoy they are skipped, or fail where CI=true."""
    for item in items:
        if "/tests/envoy/" in str(item.path):
            item.add_marker(pytest.mark.envoy)


@pytest.fixture(scope="session", autouse=True)
def envoy_installed() -> None:
    try:
        find_envoy()
    except EnvoyError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
