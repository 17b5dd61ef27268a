"""What holds for all tests."""

import os

import pytest
from hypothesis import settings

from epp.settings import TransportName

# A busy machine is no failure; how fast things are is for the benchmarks to say.
settings.register_profile("epp", deadline=None)
settings.load_profile("epp")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see no `EPP_*` variable of whoever runs them."""
    for name in [name for name in os.environ if name.startswith("EPP_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", params=list(TransportName))
def carrier(request: pytest.FixtureRequest) -> TransportName:
    """What carries the streams: tests that ask for it must come out the same with each."""
    name: TransportName = request.param
    return name
