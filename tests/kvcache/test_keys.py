"""Prefix keys depend on tokens, positions, namespace and media, and on nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kvcache.keys import PrefixKeys
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Media

KEYS = PrefixKeys(b"a secret for tests")
MASK = (1 << 64) - 1

tokens = st.lists(st.integers(0, 2**32 - 1), min_size=0, max_size=80)


def buffer(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


@given(tokens, st.sampled_from(["", "3:sqlsalt"]), st.sampled_from([1, 4, 16]))
def test_each_key_is_the_sum_over_its_prefix(values, space, block_size):
    secret = KEYS._keys
    keys = KEYS.of_prompt(buffer(values), space, block_size, ())
    assert len(keys) == len(values) // block_size
    for i, key in enumerate(keys):
        prefix = values[: (i + 1) * block_size]
        expected = KEYS.seed(space) + sum((t + 1) * int(secret[j]) for j, t in enumerate(prefix))
        assert int(key) == expected & MASK


@given(tokens, st.integers(0, 20), st.sampled_from([1, 4]))
def test_a_chain_may_be_continued_at_any_block(values, cut, block_size):
    values = values[: len(values) // block_size * block_size]
    cut = min(cut * block_size, len(values))
    whole = KEYS.of_prompt(buffer(values), "", block_size, ())
    parent = KEYS.seed("") if cut == 0 else int(whole[cut // block_size - 1])
    rest = KEYS.extend(parent, cut, buffer(values[cut:]), block_size)
    assert rest.tolist() == whole[cut // block_size :].tolist()


def test_keys_do_not_depend_on_the_block_size():
    values = buffer(list(range(64)))
    assert KEYS.of_prompt(values, "", 4, ())[3::4].tolist() == KEYS.of_prompt(values, "", 16, ()).tolist()


def test_media_change_the_keys_from_their_block_on():
    values = buffer([7] * 32)
    plain = KEYS.of_prompt(values, "", 8, ()).tolist()
    shown = KEYS.of_prompt(values, "", 8, (Media("image", 17),)).tolist()
    other = KEYS.of_prompt(values, "", 8, (Media("other", 17),)).tolist()
    assert shown[:2] == plain[:2]
    assert not set(shown[2:]) & set(plain)
    assert not set(shown[2:]) & set(other)


def test_keys_beyond_the_first_chunk_of_secrets_are_the_same_for_equal_secrets():
    values = buffer(np.arange(50_000))
    one, two = PrefixKeys(b"same"), PrefixKeys(b"same")
    two.of_prompt(values[:32_768], "", 16, ())
    assert one.of_prompt(values, "", 16, ()).tolist() == two.of_prompt(values, "", 16, ()).tolist()
    assert one.of_prompt(values, "", 16, ())[-1] != PrefixKeys(b"else").of_prompt(values, "", 16, ())[-1]


def test_tokens_beyond_the_bound_have_no_keys():
    assert len(PrefixKeys(max_tokens=64).of_prompt(buffer(list(range(100))), "", 16, ())) == 4


@pytest.mark.parametrize("other", [("a", "bc"), ("abc", ""), ("", "abc"), ("", "")])
def test_namespaces_are_joined_unambiguously(other):
    assert namespace("ab", "c") != namespace(*other)
    assert namespace() == ""
