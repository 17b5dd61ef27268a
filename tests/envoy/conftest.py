"""Everything in this folder needs the real Envoy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from epp.simulate.envoy import EnvoyError, find_envoy
from tests.envoy.chain import Chain, running_chain
from tests.small_model import write_small_model


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


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Chain]:
    """Two workers, the default policy, both bodies full duplex; shared by the tests of one file."""
    with running_chain(tmp_path_factory.mktemp("chain"), model_folder) as chain:
        yield chain
