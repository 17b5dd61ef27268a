"""Snapshots come back as they were written; files that are anything else are refused with a reason."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.cli import main
from epp.readiness.snapshot import files
from epp.readiness.snapshot.document import Body, Metadata, Section, Sections, State, seal
from epp.readiness.snapshot.files import SnapshotError
from epp.readiness.snapshot.gateway_objects import Gateway, GatewaySpec, Listener
from epp.readiness.snapshot.objects import Meta
from tests.readiness.world import body_of, healthy

GATEWAY = Gateway(Meta("gw", "infra", labels={"a": "b"}), GatewaySpec("class", (Listener("http", 80),)))
SNAPSHOT = seal(
    Body(
        Metadata("2026-01-01T00:00:00+00:00", "epp test"),
        sections=Sections(gateways=Section(State.OK, "", ("*",), (GATEWAY,)), pods=Section(State.DENIED, "403")),
    )
)


@pytest.mark.parametrize("form", [files.to_json, files.to_yaml])
def test_round_trip(form):
    assert files.parse(form(SNAPSHOT), "x") == SNAPSHOT


def changed(**fields: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(SNAPSHOT) | fields)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"\x00\xff\xfe", "neither JSON nor YAML"),
        (files.to_json(SNAPSHOT)[:-30], "neither JSON nor YAML"),
        (files.to_yaml(SNAPSHOT)[:-20], "digest"),
        (b"a: [1, 2", "is it cut off?"),
        (b"- a\n- b\n", "expected an object of kind"),
        (changed(apiVersion="readiness.epp/v9"), "another version of epp"),
        (changed(kind="Snapshot"), "kind is 'Snapshot'"),
        (changed(digest="sha256:0"), "digest does not fit"),
        (files.to_json(SNAPSHOT).replace(b'"infra"', b'"other"'), "digest does not fit"),
        (files.to_json(SNAPSHOT).replace(b'"port": 80', b'"port": "80"'), "Expected `int`"),
        (files.to_json(SNAPSHOT).replace(b'"gateways"', b'"gatewyas"'), "unknown field `gatewyas`"),
        (b"a: &a [x]\nb: [*a, *a]\n", "aliases are not taken"),
        (b"[" * 100_000, "nesting depth"),
        (b'{"a":' * 100_000, "neither JSON nor YAML"),
    ],
)
def test_refused_with_a_reason(data: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SnapshotError, match=r"^snapshot some\.yaml: ") as refused:
        files.parse(data, "some.yaml")
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_file_that_is_too_large(tmp_path: Path):
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    with pytest.raises(SnapshotError, match="over 32 MiB"):
        files.read(str(huge))


def test_a_file_that_is_not_there():
    with pytest.raises(SnapshotError, match="No such file"):
        files.read("/nowhere/snapshot.yaml")


@settings(max_examples=40)
@given(st.integers(0, len(files.to_yaml(SNAPSHOT)) - 2))
def test_cut_anywhere(length: int):
    with pytest.raises(SnapshotError):
        files.parse(files.to_yaml(SNAPSHOT)[:length], "x")


@settings(max_examples=40)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes(data: bytes):
    with pytest.raises(SnapshotError):
        files.parse(data, "x")


def test_the_published_schema_is_current(capsysbinary: pytest.CaptureFixture[bytes]):
    assert main(["snapshot", "--schema"]) == 0
    published = Path(__file__).parents[2] / "docs" / "snapshot.schema.json"
    assert capsysbinary.readouterr().out == published.read_bytes()


def test_a_digest_fits_however_values_came():
    """Equal texts may be the same object or not: decoded from JSON they are not, from YAML one-letter ones are."""
    text = msgspec.json.encode(body_of(healthy()))
    text = text.replace(b'"path":{}', b'"path":{"type":"PathPrefix","value":"/"}')
    assert b'"value":"/"' in text
    for form in (files.to_json, files.to_yaml):
        sealed = seal(msgspec.json.decode(text, type=Body))
        assert files.parse(form(sealed), "x").body == body_of(healthy())
    assert sealed.digest == seal(body_of(healthy())).digest
