"""Instance ids equal those that Dynamo's own runtime computed."""

import pytest

from epp.endpoints.dynamo import instance_id


@pytest.mark.parametrize(
    ("name", "expected"),
    [("demo-dgd-backend-0-abcde", 895489534498957), ("demo-dgd-backend-0-abcde-engine-0", 2861928004486477)],
)
def test_instance_id(name, expected):
    assert instance_id(name) == expected
