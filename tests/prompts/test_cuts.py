"""A text cut where the rules say, encoded in parts, gives the tokens of the whole, for every real tokenizer at hand."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from epp.prompts.apis import NotUnderstoodError, understand
from epp.prompts.cuts import NEWLINE, SPACE, SPACE_DROPPED, Cutter, holds, safe_rules
from epp.prompts.huggingface import HuggingFaceEncoder
from tests.prompts.real_tokenizers import NAMES, encoder

MARKS = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")

WORDS = st.sampled_from(
    [
        *("the ", "a ", "Hello ", "world", " I'm", " he'LL ", "x", "Naïve ", "straße ", "ſ", "İ", "fi ", "don't "),
        *("中文", "日本語の", "한국어 ", "Привет ", "नमस्ते ", "ไทย", "e\u0301 ", "\u0301", "\u200d", "\ufeff", "\u00ad"),
        *(" ", "  ", "\n", "\n\n", "\r\n", " \n ", "\t", "\u00a0", "\u3000", "\u2028", "\x0b", "\x1c", "\x85", "\x00"),
        *("1", "12", "345 ", "6789", "1.5e-3", "0x1F ", "٣٤", "½", "²"),
        *(
            "🙂",
            "👩‍👩‍👧 ",
            "🇩🇪",
            "e",
            " e",
            ".",
            "...",
            "--",
            "—",
            "(a)",
            '"b" ',
            "'",
            "' ",
            "$x$",
            "{'k': 1}",
            "},\n  {",
        ),
        *(
            "def f(x):\n    return x\n",
            "if a:\n\tb\n",
            "https://a.b/c?d=e&f ",
            "a_b ",
            "camelCase ",
            "</div>\n",
            "#!\n",
        ),
        *MARKS,
        *("<｜User", "｜>", "<|im_start|>", "<s>", "</s>", "[INST]", "<0x0A>", "▁", "▁the", "Ġ", "Ċ", "<｜", "<think>"),
    ]
)
TEXTS = st.lists(st.one_of(WORDS, WORDS, WORDS, st.text(max_size=6)), max_size=60).map("".join)


@cache
def rules(name):
    return safe_rules(encoder(name), MARKS)


def whole(name, text):
    return encoder(name).encode_all([text])[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek", ["space", "newline", "special token"]),
        ("gpt2", ["space", "newline"]),
        ("qwen", ["space", "newline"]),
        ("tekken", ["space", "newline"]),
        ("sentencepiece", ["space dropped"]),
    ],
)
def test_every_tokenizer_has_places_that_are_safe(name, expected):
    assert [rule.name for rule in rules(name)] == expected


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(text=TEXTS, least=st.integers(1, 40))
def test_parts_give_the_tokens_of_the_whole(name, text, least):
    chunks = Cutter(rules(name), least).cut(text)
    parts = np.concatenate(encoder(name).encode_all(chunks))
    assert parts.tolist() == whole(name, text).tolist()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(text=TEXTS, more=TEXTS)
def test_a_longer_text_has_the_chunks_of_its_beginning(name, text, more):
    short, long = (Cutter(rules(name), 8).cut(part) for part in (text, text + more))
    common = sum(1 for one, two in zip(short[:-2], long, strict=False) if one == two)
    assert common == max(0, len(short) - 2)


ESCAPES = st.sampled_from(
    [
        *(rb"\ud83d\ude42", rb"\uD83D\uDC69\u200d\uD83D\uDC67", rb"\u4e2d\u6587", rb"\u0000", rb"\n\t", rb"\/"),
        *(rb"\ud83d", rb"\ude42", rb"\ude42\ud83d", rb"\ud83dx\ude42", rb"\\ud83d", rb"\u00", rb"\x41", b"\\"),
        *(b"\xff", b"\xc3", b"\xe4\xb8", b"\xed\xa0\xbd", b"\xf0\x9f\x99", b"\xc0\xaf", b"\n", b"\x00", b"\x7f", b'"'),
    ]
)
WRITTEN = st.lists(
    st.one_of(
        ESCAPES,
        st.builds(lambda text, ascii_: json.dumps(text, ensure_ascii=ascii_)[1:-1], WORDS, st.booleans()).map(
            lambda text: text.encode()
        ),
    ),
    max_size=30,
).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(written=WRITTEN)
def test_escapes_give_the_tokens_that_the_engine_computes(written):
    """The engine's reader of JSON is Python's; what it alone reads has lone surrogates, which no tokenizer takes."""
    body = b'{"prompt": "' + written + b'"}'
    try:
        expected = json.loads(body)["prompt"]
    except ValueError:
        with pytest.raises(NotUnderstoodError) as refusal:
            understand("/v1/completions", "", body)
        assert refusal.value.problem
        return
    try:
        assert understand("/v1/completions", "", body).asked.prompt.text == expected
    except NotUnderstoodError:
        assert any("\ud800" <= character <= "\udfff" for character in expected)
        return
    for name in NAMES:
        parts = encoder(name).encode_all(Cutter(rules(name), 8).cut(expected))
        assert np.concatenate(parts).tolist() == whole(name, expected).tolist()


def test_a_text_without_places_stays_whole():
    text = "あ" * 10_000
    assert Cutter([SPACE, NEWLINE], 8).cut(text) == [text]
    assert Cutter([], 8).cut("a b c d e f g") == ["a b c d e f g"]


def bpe(merges, *added, pattern=None):
    """A tokenizer over characters with a few merges."""
    letters = "abcdefgh xyXYZ\nĠ"
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    if pattern is not None:
        from tokenizers import Regex

        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.add_tokens(list(added))
    return HuggingFaceEncoder(tokenizer.to_str())


def test_a_vocabulary_that_joins_words_forbids_cuts_between_them():
    joined = bpe([("x", " "), ("x ", "y")])
    assert SPACE not in safe_rules(joined)
    assert SPACE_DROPPED not in safe_rules(joined)
    assert SPACE in safe_rules(bpe([("x", "y")]))


def test_an_added_token_that_spans_words_forbids_cuts_between_them():
    assert SPACE not in safe_rules(bpe([], AddedToken("x y", normalized=False)))
    assert SPACE not in safe_rules(bpe([], AddedToken("x", normalized=False, rstrip=True)))


def test_a_pattern_that_looks_behind_forbids_cuts():
    assert safe_rules(bpe([], pattern=r"(?<=x) y")) == []
    assert safe_rules(bpe([], pattern=r"\bx")) == []
    assert safe_rules(bpe([], pattern=r"[^$\^]x")) != []


def test_a_turn_mark_inside_another_added_token_is_no_place():
    inside = bpe([], AddedToken("ab", normalized=False), AddedToken("xab", normalized=False))
    assert [rule.name for rule in safe_rules(inside, ["ab"])] == ["space", "newline"]


def test_dropping_the_space_is_refused_where_it_matters():
    assert not holds(encoder("deepseek"), SPACE_DROPPED)
    assert not holds(encoder("sentencepiece"), SPACE)
    assert not holds(encoder("sentencepiece"), NEWLINE)
