"""The small model that simulated workers serve here."""

from pathlib import Path

import pytest

from tests.small_model import write_small_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model"))
