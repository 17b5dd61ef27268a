"""A tokenizer of the Hugging Face `tokenizers` library, as a TextEncoder."""

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from tokenizers import Tokenizer

from epp.prompts.cuts import AddedToken
from epp.prompts.prompt import TokenIds

# Prompts are encoded in EPP_TOKENIZER_THREADS threads; the library's own would take every core from the event loop.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class _Description(msgspec.Struct):
    """What a tokenizer.json says beside its vocabulary, which is skipped: to decode it too would hold Python's lock."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None
    added_tokens: list[dict[str, Any]] | None = None


_loaded: WeakValueDictionary[bytes, "HuggingFaceEncoder"] = WeakValueDictionary()


def load_encoder(text: str) -> "HuggingFaceEncoder":
    """The encoder that a tokenizer.json describes; one for equal files, as it takes much memory.

    Raises ValueError for a file that is no tokenizer.
    """
    digest = hashlib.sha256(text.encode()).digest()
    encoder = _loaded.get(digest)
    if encoder is None:
        encoder = _loaded[digest] = HuggingFaceEncoder(text)
    return encoder


class HuggingFaceEncoder:
    """Never truncates or pads, whatever the file says: engines do neither to a prompt.

    Raises ValueError for a file that is no tokenizer.
    """

    def __init__(self, text: str) -> None:
        try:
            self._description = msgspec.json.decode(text, type=_Description)
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"not a tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.before, self.after = _added_around(tokenizer)
        """Ids that the tokenizer adds around a text when special tokens are asked for."""

    def encode_all(self, texts: Sequence[str]) -> list[TokenIds]:
        """The ids of each text, without special tokens around it. Releases the GIL while the library works.

        Raises UnicodeEncodeError for lone surrogates.
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            "".join(texts).encode()
            raise
        return [np.frombuffer(array("I", encoding.ids), dtype=np.uint32) for encoding in encodings]

    def vocabulary(self) -> Iterable[bytes]:
        """The text of every entry; bytes of byte-level tokenizers are translated back."""
        return (text for _, text in self.entries())

    def entries(self) -> Iterable[tuple[int, bytes]]:
        """Id and text of every entry, in no order."""
        byte_level = '"ByteLevel"' in json.dumps([self._description.pre_tokenizer, self._description.decoder])
        table = _byte_of_character() if byte_level else {}
        for entry, id_ in self._written():
            if byte_level:
                yield id_, entry.translate(table).encode("latin-1", "replace")
            else:
                yield id_, entry.replace("▁", " ").encode()

    def _written(self) -> Iterable[tuple[str, int]]:
        """Every entry as the file writes it, one by one: all at once would hold Python's lock for long."""
        wanted = self._tokenizer.get_vocab_size(with_added_tokens=True)
        found = [(entry, i) for i in range(wanted) if (entry := self._tokenizer.id_to_token(i)) is not None]
        return found if len(found) == wanted else self._tokenizer.get_vocab(with_added_tokens=True).items()

    @cached_property
    def added_tokens(self) -> list[AddedToken]:
        """The added tokens that the file lists."""
        return [_added_token(token) for token in self._description.added_tokens or ()]

    @cached_property
    def patterns(self) -> list[str]:
        """Every regular expression of the normaliser and the pre-tokenizer."""
        return [*_values_of("Regex", [self._description.normalizer, self._description.pre_tokenizer])]


def _added_token(token: dict[str, Any]) -> AddedToken:
    looks = any(token.get(flag) for flag in ("normalized", "lstrip", "rstrip", "single_word"))
    return AddedToken(content=str(token.get("content", "")), plain=not looks)


def _values_of(key: str, value: Any) -> Iterator[str]:
    """Every string under `key` anywhere in `value`."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key and isinstance(item, str):
                yield item
            else:
                yield from _values_of(key, item)
    elif isinstance(value, list):
        for item in value:
            yield from _values_of(key, item)


def _byte_of_character() -> dict[int, int]:
    """The byte for each character that byte-level tokenizers write for it (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {**{byte: byte for byte in printable}, **{256 + i: byte for i, byte in enumerate(others)}}


def _added_around(tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """The ids that the tokenizer puts before and after a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if whole[start:end] == plain:
            return np.array(whole[:start], dtype=np.uint32), np.array(whole[end:], dtype=np.uint32)
    raise ValueError("it adds special tokens inside a text")
