"""A rewrite changes the model's name and no other byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.splice import replace_model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), st.text(), st.text(), st.booleans(), st.integers(0, 2))
def test_the_new_model_is_read_back_and_all_else_is_kept(
    body: dict[str, object], old: str, new: str, ascii_only: bool, indent: int
) -> None:
    body["model"] = old
    text = json.dumps(body, ensure_ascii=ascii_only, indent=indent)
    changed = replace_model(text.encode("utf-8", "surrogatepass"), new)
    assert changed is not None
    assert json.loads(changed) == {**body, "model": new}


def test_bytes_around_the_value_are_untouched() -> None:
    body = b' {"n": 9007199254740993.10, "nested": {"model": "x"}, "mod\\u0065l" : "a\\"b" , "z":[1e400]}\n'
    expected = b' {"n": 9007199254740993.10, "nested": {"model": "x"}, "mod\\u0065l" : "new" , "z":[1e400]}\n'
    assert replace_model(body, "new") == expected


def test_of_a_repeated_key_the_last_one_counts() -> None:
    assert replace_model(b'{"model":"a","model":"b"}', "c") == b'{"model":"a","model":"c"}'


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"model":1}', b'{"model":"a"', b"\xff", b'"model"', b"\x1f\x8b"])
def test_a_body_without_a_model_is_not_changed(body: bytes) -> None:
    assert replace_model(body, "x") is None
