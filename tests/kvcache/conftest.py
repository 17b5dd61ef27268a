"""Fixtures of several tests of KV knowledge."""

from collections.abc import Iterator

import pytest

from tests.kvcache.publisher import Publisher


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    yield publisher
    publisher.close()
