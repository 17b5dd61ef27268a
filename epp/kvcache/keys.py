"""Prefix keys: one 64-bit number for "these tokens, from the start, in this namespace"."""

import hashlib
import secrets
from array import array
from functools import lru_cache
from operator import mul

import numpy as np
from numpy.typing import NDArray

from epp.prompts.prompt import Media

Keys = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_CHUNK = 16_384
_FEW = 64
"""Tokens up to which plain integers are quicker than NumPy's set-up."""


class PrefixKeys:
    """A multilinear hash over token positions, as running sums, so that all prefixes cost one pass of NumPy.

    The key of the first n tokens is `seed + sum((t_j + 1) * K_j for j < n) mod 2^64`, with one secret random K_j for
    each position j and a seed drawn from the namespace. It does not depend on the block size. Two prefixes that
    differ collide with probability at most 2^-(64-v), where 2^v is the largest power of two that divides the
    difference of two token ids; whoever does not know the secret cannot do better.
    """

    def __init__(self, secret: bytes | None = None, *, max_tokens: int = 1 << 20) -> None:
        self._max_tokens = max_tokens
        self.seed = lru_cache(maxsize=1024)(self._seed)
        """Key of the empty prefix in a namespace."""
        self.take(secrets.token_bytes(32) if secret is None else secret)

    def take(self, secret: bytes) -> None:
        """Begin anew with another secret; keys that were made before mean nothing any more."""
        self.secret = secret
        self._keys: Keys = np.empty(0, dtype=np.uint64)
        self._key_sums: Keys = np.zeros(1, dtype=np.uint64)
        self.seed.cache_clear()
        self._grow(_CHUNK)

    @property
    def secret_id(self) -> bytes:
        """Tells secrets apart without telling them: equal keys mean equal prefixes only where this is equal."""
        return secret_id(self.secret)

    @property
    def max_tokens(self) -> int:
        """Positions beyond this many tokens have no key."""
        return self._max_tokens

    def of_prompt(self, tokens: NDArray[np.uint32], namespace: str, block_size: int, media: tuple[Media, ...]) -> Keys:
        """Keys after each full block of `block_size` tokens; shape (number of full blocks,)."""
        blocks = min(len(tokens), self._max_tokens) // block_size
        keys = self.extend(self.seed(namespace), 0, tokens[: blocks * block_size], block_size)
        for item in media:
            keys[item.offset // block_size :] += np.uint64(self.media_term(item))
        return keys

    def extend(self, parent: int, position: int, tokens: NDArray[np.uint32], block_size: int) -> Keys:
        """Keys after each block of `tokens`, which begin at `position` behind the prefix with the key `parent`.

        The length of `tokens` is a multiple of `block_size`, and `position + len(tokens)` within `max_tokens`.
        """
        end = position + len(tokens)
        if end >= len(self._key_sums):
            self._grow(end)
        shape = (-1, block_size)
        wide = tokens.astype(np.uint64)
        keys: Keys = np.vecdot(wide.reshape(shape), self._keys[position:end].reshape(shape)).cumsum()
        keys += self._key_sums[position + block_size : end + 1 : block_size]
        keys += np.uint64((parent - int(self._key_sums[position])) & _MASK)
        return keys

    def chain(
        self, parent: int, position: int, tokens: "array[int]", block_size: int, media: tuple[Media, ...]
    ) -> list[int]:
        """As `extend`, for the tokens and media of an event; offsets of media count from the first token."""
        if len(tokens) <= _FEW:
            keys = self._few(parent, position, tokens, block_size)
        else:
            keys = self.extend(parent, position, np.frombuffer(tokens, dtype=np.uint32), block_size).tolist()
        for item in media:
            term = self.media_term(Media(item.id, position + item.offset))
            first = item.offset // block_size
            keys[first:] = [(key + term) & _MASK for key in keys[first:]]
        return keys

    def _few(self, key: int, position: int, tokens: "array[int]", block_size: int) -> list[int]:
        if position + len(tokens) >= len(self._key_sums):
            self._grow(position + len(tokens))
        keys = []
        for start in range(0, len(tokens), block_size):
            first = position + start
            secret = self._keys[first : first + block_size].tolist()
            key = (key + sum(map(mul, tokens[start : start + block_size], secret)) + sum(secret)) & _MASK
            keys.append(key)
        return keys

    def media_term(self, item: Media) -> int:
        """What an item adds to every key from the block on in which it begins."""
        return self._digest(b"media", item.id.encode() + item.offset.to_bytes(8, "little"))

    def _seed(self, namespace: str) -> int:
        return self._digest(b"namespace", namespace.encode())

    def _digest(self, purpose: bytes, text: bytes) -> int:
        digest = hashlib.blake2b(text, key=self.secret, person=purpose, digest_size=8)
        return int.from_bytes(digest.digest(), "little")

    def _grow(self, positions: int) -> None:
        parts = [self._keys]
        for chunk in range(len(self._keys) // _CHUNK, -(-(positions + 1) // _CHUNK)):
            stream = hashlib.shake_256(self.secret + chunk.to_bytes(8, "little"))
            parts.append(np.frombuffer(stream.digest(_CHUNK * 8), dtype=np.uint64))
        self._keys = np.concatenate(parts)
        self._key_sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(self._keys, dtype=np.uint64)])


def secret_id(secret: bytes) -> bytes:
    """Eight bytes that tell secrets apart without telling them."""
    return hashlib.blake2b(b"", key=secret, person=b"secret id", digest_size=8).digest()
