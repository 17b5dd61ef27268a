"""Places at which a text may be cut so that its parts, encoded apart, give the tokens of the whole.

A cut is used only when it is safe for the tokenizer at hand, whatever stands left and right of it. A rule names places
by the characters around them; `safe_rules` keeps the rules for which all of this holds:

1. no entry of the vocabulary spans the place, so no merge crosses it, even if the pre-tokenizer does not split there;
2. no added token spans it, and none swallows white space or looks at the characters beside it;
3. the pre-tokenizer's patterns look neither behind nor at anchors, so a scan that begins at the place goes on as a
   scan that comes from the left (regular expressions match from left to right);
4. a test at load finds no difference over characters of every class on both sides (it would show a pattern whose
   lookahead makes the left part depend on what follows).
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from epp.prompts.prompt import TokenIds

CHUNK_CHARACTERS = 2048
"""A chunk is cut at the first safe place after this many characters: short enough that a longer tail is cheap."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in the text before any pre-tokenizer sees it."""

    content: str
    plain: bool
    """Found in the raw text wherever it stands: not normalised, no stripping, no look at its neighbours."""


class TextEncoder(Protocol):
    """What is asked of a tokenizer."""

    @property
    def added_tokens(self) -> Sequence[AddedToken]:
        """The added tokens that `encode_all` finds."""

    @property
    def patterns(self) -> Sequence[str]:
        """The regular expressions of its pre-tokenizer."""

    def encode_all(self, texts: Sequence[str]) -> list[TokenIds]:
        """The ids of each text, without the special tokens around it. Raises UnicodeEncodeError."""

    def vocabulary(self) -> Iterable[bytes]:
        """The text of every entry."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One kind of place."""

    name: str
    place: re.Pattern[str]
    """Finds it."""
    spanning: re.Pattern[bytes] | None
    """Finds vocabulary entries that span it; None: no entry can."""
    left: str
    right: str
    """An instance: the text ends with `left`, what follows begins with `right`."""
    offset: int = 0
    """Characters from the beginning of a match to the cut."""
    dropped: int = 0
    """Characters left out behind the cut, because the tokenizer puts them back in front of every text."""


_LETTERS = "A-Za-z\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
_MARKS = "!-~\u3001-\u303f\uff01-\uff5e"

SPACE = Rule("space", re.compile(r" (?<=[A-Za-z] )[A-Za-z]"), re.compile(rb"[A-Za-z] "), "x", " y")
SPACE_DROPPED = Rule("space dropped", SPACE.place, SPACE.spanning, "x", " y", dropped=1)
NEWLINE = Rule(
    "newline",
    re.compile(rf"\n(?<=[{_MARKS}{_LETTERS}]\n)(?=[{_LETTERS}])"),
    re.compile(rb"\n[A-Za-z\xd0-\xed]"),
    "x\n",
    "y",
    offset=1,
)

_PATTERN_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<|.", re.DOTALL)
_LOOKING_AROUND = frozenset({"(?<", "^", "$", *(rf"\{sign}" for sign in "bBAzZGK123456789")})

_SAMPLES = (
    *("a", "Z", "é", "中", "あ", "한", "ж", "ß", "1", "23", "456", "7890", " ", "  ", "\n", "\n\n", "\r\n", "\t"),
    *("'", "'s", "'LL", "'t ", '"', "(", ")", "--", "_", "/", ".", ",", "—", "{", "}\n", "://", "#", "x1", "1x"),
    *("🙂", "👩‍👩‍👧", "e\u0301", "\u0301", "\u200d", "\u00a0", "\u3000", "。", "！", "\u2028", "ﬁ", "¼", "٣", "क्ष"),
)
_TEST_PAIRS = 600
_NEAR_CHARACTERS = 128


class Cutter:
    """Cuts texts into chunks; two texts with the same beginning get the same chunks up to the last common one."""

    def __init__(self, rules: Sequence[Rule], least: int = CHUNK_CHARACTERS) -> None:
        self.rules = tuple(rules)
        self._least = least

    def cut(self, text: str) -> list[str]:
        """The chunks, in order; encoded apart and joined they give the tokens of `text`."""
        chunks = []
        start = 0
        far = dict.fromkeys(self.rules, -1)
        while len(text) - start > self._least:
            place, rule = _near(text, start + self._least, self.rules) or _far(text, start + self._least, far)
            if rule is None:
                break
            chunks.append(text[start:place])
            start = place + rule.dropped
        chunks.append(text[start:])
        return chunks


def _near(text: str, earliest: int, rules: Sequence[Rule]) -> tuple[int, Rule] | None:
    """The first rule's first place within a few words from `earliest`: what ordinary text nearly always has."""
    for rule in rules:
        match = rule.place.search(text, earliest, earliest + _NEAR_CHARACTERS)
        if match:
            return match.start() + rule.offset, rule
    return None


def _far(text: str, earliest: int, found: dict[Rule, int]) -> tuple[int, Rule | None]:
    """The first place of any rule; `found` keeps each rule's next place, so that a text is searched once."""
    best: tuple[int, Rule | None] = (len(text), None)
    for rule, place in found.items():
        if place < earliest:
            match = rule.place.search(text, earliest)
            place = found[rule] = match.start() + rule.offset if match else len(text)
        if place < best[0]:
            best = (place, rule)
    return best


def safe_rules(encoder: TextEncoder, tokens: Iterable[str] = ()) -> list[Rule]:
    """The rules that are safe for `encoder`; `tokens`: added tokens that its texts hold often, such as turn marks."""
    if any(_LOOKING_AROUND.intersection(_PATTERN_PARTS.findall(pattern)) for pattern in encoder.patterns):
        candidates = []
    else:
        vocabulary = b"\0".join(encoder.vocabulary())
        candidates = [rule for rule in (SPACE, SPACE_DROPPED, NEWLINE) if _spans_nothing(rule, vocabulary, encoder)]
    before_token = _before_tokens(encoder, tokens)
    if before_token is not None:
        candidates.append(before_token)
    safe = [rule for rule in candidates if holds(encoder, rule)]
    return [rule for rule in safe if rule is not SPACE_DROPPED or SPACE not in safe]


def holds(encoder: TextEncoder, rule: Rule, pairs: int = _TEST_PAIRS) -> bool:
    """Whether cutting makes no difference in `pairs` random texts, with every sample on each side of the place."""
    lefts, rights = zip(*_test_pairs(rule, pairs), strict=True)
    whole = encoder.encode_all([left + right for left, right in zip(lefts, rights, strict=True)])
    parts = zip(encoder.encode_all(lefts), encoder.encode_all([right[rule.dropped :] for right in rights]), strict=True)
    return all(np.array_equal(ids, np.concatenate(both)) for ids, both in zip(whole, parts, strict=True))


def _test_pairs(rule: Rule, pairs: int) -> Iterator[tuple[str, str]]:
    choose = random.Random(1)  # noqa: S311 - the same test at every start
    for sample in _SAMPLES:
        yield sample + rule.left, rule.right + choose.choice(_SAMPLES)
        yield choose.choice(_SAMPLES) + rule.left, rule.right + sample
    for _ in range(pairs):
        before = "".join(choose.choices(_SAMPLES, k=choose.randint(0, 6)))
        after = "".join(choose.choices(_SAMPLES, k=choose.randint(0, 6)))
        yield before + rule.left, rule.right + after


def _spans_nothing(rule: Rule, vocabulary: bytes, encoder: TextEncoder) -> bool:
    if rule.spanning is None:
        return True
    if rule.spanning.search(vocabulary):
        return False
    added = encoder.added_tokens
    if any(rule.spanning.search(token.content.encode()) for token in added):
        return False
    return all(token.plain or not _letters_at_edges(token.content) for token in added)


def _letters_at_edges(content: str) -> bool:
    return content[:1].isalpha() or content[-1:].isalpha()


def _before_tokens(encoder: TextEncoder, tokens: Iterable[str]) -> Rule | None:
    """The rule "before one of these added tokens": text left and right of an added token is encoded apart."""
    added = {token.content: token for token in encoder.added_tokens}
    usable = [token for token in dict.fromkeys(tokens) if token in added and added[token].plain]
    usable = [token for token in usable if not any(_overlaps(other, token) for other in added)]
    if not usable:
        return None
    place = re.compile("|".join(re.escape(token) for token in sorted(usable, key=len, reverse=True)))
    return Rule("special token", place, None, "", usable[0])


def _overlaps(other: str, token: str) -> bool:
    """Whether `other` may begin left of `token` and reach into it."""
    return any(token.startswith(other[at : at + len(token)]) for at in range(1, len(other)) if other[at] == token[0])
