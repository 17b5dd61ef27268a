"""Everything in this folder needs the real Envoy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from epp.settings import TransportName
from tests.envoy.chain import Chain, running_chain
from tests.envoy.installed import require_envoy
from tests.small_model import write_small_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the folder's tests; each starts several processes, which takes its time on a busy machine."""
    for item in items:
        if "/tests/envoy/" in str(item.path):
            item.add_marker(pytest.mark.envoy)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session", autouse=True)
def envoy_installed() -> None:
    require_envoy()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, carrier: TransportName) -> Iterator[Chain]:
    """Two workers, the default policy, both bodies full duplex; shared by the tests of one file."""
    with running_chain(tmp_path_factory.mktemp("chain"), model_folder, carrier=carrier) as chain:
        yield chain


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the matrix of body modes found, in one table."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [value for report in reports for name, value in report.user_properties if name == "matrix"]
    if rows:
        names = list(rows[0])
        terminalreporter.section("body modes through Envoy, byte for byte")
        for row in [dict(zip(names, names, strict=True)), *sorted(rows, key=lambda row: list(row.values())[:2])]:
            cells = [str(row.get(name, ""))[:20].ljust(20 if name in names[:2] else 10) for name in names]
            terminalreporter.write_line(" ".join(cells).rstrip())
