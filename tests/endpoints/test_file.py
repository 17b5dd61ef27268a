"""The endpoints file: what it may say, and how it is told to be wrong."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Role
from epp.endpoints.file import parse_endpoints, read_endpoints
from epp.settings import SettingsError

DOCUMENT = Path(__file__).parents[2] / "docs" / "endpoints-file.md"
ONE = {"name": "a", "address": "10.0.0.1", "ports": [8000]}


def parse(*entries):
    return parse_endpoints(json.dumps({"endpoints": entries}), "file")


def test_an_entry_with_one_port():
    (endpoint,) = parse(ONE)
    assert (endpoint.name, endpoint.host_port, endpoint.rank) == ("a", "10.0.0.1:8000", 0)
    assert endpoint.roles == {Role.DECODE, Role.PREFILL}
    assert endpoint.events_port is None


def test_each_port_of_an_entry_is_a_rank_with_its_own_event_port():
    first, second = parse(
        ONE | {"ports": [8000, 8100], "rank": 2, "events_port": 5557, "replay_port": 5600, "metrics_port": 9000}
    )
    assert (first.name, first.host_port, first.rank) == ("a-rank-2", "10.0.0.1:8000", 2)
    assert (second.name, second.host_port, second.rank) == ("a-rank-3", "10.0.0.1:8100", 3)
    assert (first.events_port, first.replay_port, first.metrics_port) == (5557, 5600, 9000)
    assert (second.events_port, second.replay_port, second.metrics_port) == (5558, 5601, 9000)


def test_ranks_that_share_a_port_are_endpoints_where_a_header_chooses_among_them():
    shared = ONE | {"event_ranks": 2, "rank_by_header": True, "events_port": 5557, "load_port": 6000}
    first, second = parse(shared)
    assert (first.name, second.name) == ("a-rank-0", "a-rank-1")
    assert first.host_port == second.host_port == "10.0.0.1:8000"
    assert first.place != second.place
    assert (second.rank, second.events_port, second.load_port, second.event_ranks) == (1, 5558, 6001, 1)
    with pytest.raises(SettingsError, match="rank_by_header: expected one port"):
        parse(shared | {"ports": [8000, 8001]})
    with pytest.raises(SettingsError, match="is already given"):
        parse(shared, shared | {"name": "b"})


def test_all_fields():
    (endpoint,) = parse(
        ONE
        | {"role": "prefill", "engine": "sglang", "labels": {"zone": "x"}, "block_size": 64, "uid": "u"}
        | {"weight": 0.5, "app_protocol": "kubernetes.io/h2c", "event_ranks": 2},
    )
    assert (endpoint.weight, endpoint.app_protocol, endpoint.event_ranks) == (0.5, "kubernetes.io/h2c", 2)
    assert endpoint.roles == {Role.PREFILL}
    assert (endpoint.engine, endpoint.labels, endpoint.block_size, endpoint.uid) == ("sglang", {"zone": "x"}, 64, "u")


def test_ipv6_is_written_as_the_destination_header_wants_it():
    assert parse(ONE | {"address": "FD00:0::1"})[0].host_port == "[fd00::1]:8000"


def test_dynamo_workers_are_named_by_pod_or_by_id():
    assert parse(ONE | {"dynamo_pod": "demo-dgd-backend-0-abcde"})[0].instance_id == 895489534498957
    assert parse(ONE | {"dynamo_instance_id": 7})[0].instance_id == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": 2}, "weight: input should be less than or equal to 1, not 2"),
        ({"app_protocol": "h3"}, "app_protocol: input should be 'http' or 'kubernetes.io/h2c', not 'h3'"),
        ({"address": "worker.local"}, r"address: expected an IPv4 or IPv6 address; gateways .*, not 'worker.local'"),
        ({"address": "0.0.0.0"}, r"address: expected the address of one host"),
        ({"address": "fe80::1%eth0"}, r"address: expected the address of one host"),
        ({"ports": []}, r"ports: list should have at least 1 item"),
        ({"ports": [8000, 65536]}, r"ports\[1\]: .*less than or equal to 65535, not 65536"),
        ({"ports": "8000"}, r"ports: input should be a valid list, not '8000'"),
        ({"ports": [True]}, r"ports\[0\]: input should be a valid integer, not True"),
        ({"ports": [8000, 8000]}, r"endpoints\[0\].ports\[1\]: 10.0.0.1:8000 is already given on line"),
        ({"role": "decoder"}, r"role: expected one of decode, prefill, .*, not 'decoder'"),
        ({"labels": {"a": 1}}, r"labels.a: input should be a valid string, not 1"),
        ({"block_size": 0}, r"block_size: .*greater than or equal to 1, not 0"),
        ({"event_port": 1}, r"event_port: no such field; known are name, address, ports, .*events_port"),
        ({"events_port": 65535, "ports": [1, 2]}, r"events_port 65535 leaves no room for 2 ranks"),
        ({"dynamo_pod": "p", "dynamo_instance_id": 1}, r"exclude each other"),
        ({"name": ""}, r"name: .*at least 1 char"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(change, message):
    with pytest.raises(SettingsError, match=message):
        parse(ONE | change)


def test_every_mistake_is_told_with_its_line():
    text = "endpoints:\n- name: a\n  address: x\n  ports:\n  - 8000\n  - 0\n- name: b\n  ports: [1]\n"
    with pytest.raises(SettingsError) as caught:
        parse_endpoints(text, "file")
    assert [line.split(" ")[0:2] for line in str(caught.value).splitlines()] == [
        ["file:3:", "endpoints[0].address:"],
        ["file:6:", "endpoints[0].ports[1]:"],
        ["file:7:", "endpoints[1].address:"],
    ]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"name": "a", "address": "10.0.0.2", "ports": [1]}, r"endpoints\[1\].name: a is already given on line 1"),
        ({"name": "b", "address": "10.0.0.1", "ports": [8000]}, r"10.0.0.1:8000 is already given on line 1"),
    ],
)
def test_duplicates_are_refused(second, message):
    with pytest.raises(SettingsError, match=message):
        parse(ONE, second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file:1: document: expected a mapping of fields"),
        ("- a", "file:1: document: expected a mapping of fields"),
        ("endpoints: []\nendpoints: []", "file:2: 'endpoints' is given twice"),
        ("endpoints: &x [*x]", "file:1: aliases are not supported"),
        ("endpoints: [", "file:1: "),
        ("a: !!python/object:os.system x\nendpoints: []", "file:1: could not determine a constructor"),
        ("endpoints: []\nmore: 1", "file:2: more: no such field; known are endpoints"),
        ("[" * 1000, "file:1: nested too deeply"),
        ("a: \x00", "file:1: "),
    ],
)
def test_a_file_of_the_wrong_shape(text, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        parse_endpoints(text, "file")


def test_json_with_tabs_is_json():
    assert len(parse_endpoints('{\n\t"endpoints":\t[{"name": "a", "address": "10.0.0.1", "ports": [1]}]}', "file")) == 1


@given(st.text(max_size=60))
def test_no_text_does_worse_than_a_named_error(text):
    with pytest.raises(SettingsError, match=r"^file:\d+: "):
        parse_endpoints(text, "file")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SettingsError, match=r"missing.yaml: cannot be read: No such file"):
        read_endpoints(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"endpoints: [\xe9]")
    with pytest.raises(SettingsError, match=r"latin.yaml: expected UTF-8 text"):
        read_endpoints(tmp_path / "latin.yaml")


@pytest.mark.parametrize("language", ["yaml", "json"])
def test_the_documented_examples_are_valid(tmp_path, language):
    (example,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / f"endpoints.{language}"
    path.write_text(example)
    assert read_endpoints(path)
